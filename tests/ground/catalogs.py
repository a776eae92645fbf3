"""The messages of the package and what the catalogues of its languages hold: read, updated, compiled.

In Python alone: ``makemessages`` and ``compilemessages`` need GNU gettext, which a machine may not have.
``make messages`` runs it: messages that are new come into every catalogue, empty, those that are gone leave, and all
are compiled. ``tests/ground/test_catalogs.py`` fails until the new ones are translated.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

from babel.messages.catalog import Catalog
from babel.messages.extract import DEFAULT_KEYWORDS, extract
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po
from django.utils.translation.template import templatize

import pgqueue_django

PACKAGE = Path(pgqueue_django.__file__).parent
LOCALE = PACKAGE / "locale"
LANGUAGES = sorted(folder.name for folder in LOCALE.iterdir())
KEYWORDS = {
    **DEFAULT_KEYWORDS,
    **{f"{name}_{kind}": DEFAULT_KEYWORDS[name] for name in ("gettext", "ngettext") for kind in ("lazy", "noop")},
    **{f"{name}_lazy": DEFAULT_KEYWORDS[name] for name in ("pgettext", "npgettext")},
}


def extracted() -> Catalog:
    """Every message that code and templates mark, with the files that it is in."""
    found = Catalog(project="pgqueue_django", fuzzy=False)
    for path in sorted([*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.html")]):
        for line, message, _, context in extract("python", _source(path), keywords=KEYWORDS):
            found.add(message, locations=[(str(path.relative_to(PACKAGE.parent)), line)], context=context)
    return found


def _source(path: Path) -> io.BytesIO:
    text = path.read_text()
    if path.suffix == ".html":
        # Django makes Python of a template, for xgettext; Babel minds how it is indented.
        text = "\n".join(line.strip() for line in templatize(text).splitlines())
    return io.BytesIO(text.encode())


def po(language: str) -> Path:
    return LOCALE / language / "LC_MESSAGES" / "django.po"


def read(language: str) -> Catalog:
    with po(language).open("rb") as file:
        return read_po(file, locale=language)


def updated(language: str) -> str:
    """The catalogue's text with the messages that there are now, and none that are gone."""
    catalog, template = read(language), extracted()
    template.creation_date = catalog.creation_date  # a date that is new each time would be all that changes
    catalog.update(template, no_fuzzy_matching=True)
    catalog.obsolete.clear()
    text = io.BytesIO()
    write_po(text, catalog, width=100, include_lineno=False, sort_by_file=True)
    return text.getvalue().decode()


def compiled(language: str) -> bytes:
    file = io.BytesIO()
    write_mo(file, read(language))
    return file.getvalue()


def each_text(catalog: Catalog) -> Iterator[tuple[str, str]]:
    """``(msgid, its translation)``, of each plural form: the first of several is for one alone."""
    for message in catalog:
        if not message.id:
            continue
        ids = message.id if isinstance(message.id, tuple) else (message.id,)
        texts = message.string if isinstance(message.string, tuple) else (message.string,)
        for place, text in enumerate(texts):
            yield ids[0 if place == 0 and len(texts) > 1 else -1], str(text)


def main() -> None:
    for language in LANGUAGES:
        po(language).write_text(updated(language))
        po(language).with_suffix(".mo").write_bytes(compiled(language))


if __name__ == "__main__":
    main()
