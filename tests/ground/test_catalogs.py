"""The translations: complete, in step with the code and with what was compiled, and right in what they fill in."""

from __future__ import annotations

import gettext
import io
import re
from collections import Counter

import pytest
from babel.messages.catalog import Catalog
from django.utils import translation
from ground import catalogs
from ground.catalogs import LANGUAGES

_PLACEHOLDER = re.compile(r"%\(\w+\)[a-z]|%%")


def _edges(text: str) -> tuple[str, str]:
    """The spaces at both ends."""
    return text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]


def ids(catalog: Catalog) -> set[object]:
    return {(message.context, message.id) for message in catalog if message.id}


def test_the_promised_languages_are_there() -> None:
    assert {"de", "pl", "zh_Hans"} <= set(LANGUAGES)


def test_messages_are_found_in_code_and_in_templates_of_each_kind() -> None:
    messages = {(message.context, message.id) for message in catalogs.extracted()}
    found = {id for _, id in messages}
    assert "Job queue" in found  # gettext_lazy as _
    assert ("queue", "state") in messages  # pgettext_lazy
    assert ("queue", "gone") in messages  # pgettext
    assert ("queue", "Result") in messages  # {% translate %} with a context
    assert "Job %(number)s" in found  # gettext
    assert ("%(count)s requeued", "%(count)s requeued") in found  # ngettext_lazy
    assert "%(line)r: no date ever matches it." in found  # gettext_noop as _
    assert "Failed attempts" in found  # {% translate %}
    assert "after %(took)s" in found  # {% blocktranslate %}
    assert ("%(counter)s argument, not shown to you.", "%(counter)s arguments, not shown to you.") in found


def test_a_single_word_has_a_context() -> None:
    """Django makes one catalogue of all apps: a shop's "state" may be part of an address, and its "worker" a person."""
    djangos = {"Home", "History"}  # in its admin, and shown there with them
    bare = {message.id for message in catalogs.extracted() if message.context is None and isinstance(message.id, str)}
    assert {id for id in bare if re.fullmatch(r"\w+", id)} == djangos


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_catalogue_has_the_messages_of_the_code_and_no_others(language: str) -> None:
    """If this fails: ``make messages``, and translate what is empty then."""
    assert ids(catalogs.read(language)) == ids(catalogs.extracted())


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_message_is_translated_and_none_is_a_guess(language: str) -> None:
    catalog = catalogs.read(language)
    assert [message.id for message in catalog if message.fuzzy] == []
    assert [id for id, text in catalogs.each_text(catalog) if not text.strip()] == []
    assert not catalog.obsolete
    for message in catalog:
        if isinstance(message.id, tuple):
            assert len(message.string) == catalog.num_plurals


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_translation_fills_in_what_the_message_does(language: str) -> None:
    wrong = [
        (id, text)
        for id, text in catalogs.each_text(catalogs.read(language))
        if Counter(_PLACEHOLDER.findall(id)) != Counter(_PLACEHOLDER.findall(text)) or _edges(id) != _edges(text)
    ]
    assert wrong == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_was_compiled_is_what_is_written(language: str) -> None:
    """If this fails: ``make messages``."""
    with catalogs.po(language).with_suffix(".mo").open("rb") as file:
        there = gettext.GNUTranslations(file)
    fresh = gettext.GNUTranslations(io.BytesIO(catalogs.compiled(language)))
    texts = {id: text for id, text in there._catalog.items() if id}  # "" is the header, with the tool's version
    assert texts == {id: text for id, text in fresh._catalog.items() if id}
    assert len(texts) > 100
    assert [there.plural(n) for n in range(200)] == [fresh.plural(n) for n in range(200)]


@pytest.mark.parametrize(
    ("language", "forms"),
    [
        ("pl", {1: "1 zadanie przywr", 2: "2 zadania przywr", 5: "5 zadań przywr", 12: "12 zadań", 22: "22 zadania"}),
        ("de", {0: "0 Aufträge", 1: "1 Auftrag neu", 2: "2 Aufträge"}),
        ("zh-hans", {1: "1 个作业", 2: "2 个作业"}),
    ],
)
def test_plurals_are_those_of_the_language(language: str, forms: dict[int, str]) -> None:
    with translation.override(language):
        for count, begin in forms.items():
            text = translation.ngettext("%(count)s requeued", "%(count)s requeued", count) % {"count": count}
            assert text.startswith(begin), text
