"""What people type to find jobs is read, or refused with where and why; and whatever it is, never anything else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgqueue_django import search
from pgqueue_django.search import SearchError, read


@pytest.mark.parametrize(
    ("text", "ids"),
    [("17", (17,)), ("#17", (17,)), ("id:1,2", (1, 2)), ("id:#3", (3,)), ("id:1,2 2", (2,)), ("1 2", ()), ("", None)],
)
def test_numbers_name_jobs(text: str, ids: tuple[int, ...] | None) -> None:
    assert read(text).ids == ids


def test_each_term_is_a_condition_and_none_of_what_is_typed_gets_into_the_sql() -> None:
    query = read('task:shop.* queue:mail worker:web-1 label:"invoice 42" error:CardError key:a:b args.tenant_id:7')
    assert len(query.conditions) == 7
    assert query.params == [
        "shop.%",
        "mail",
        "web-1",
        "%invoice 42%",
        "%CardError%",
        "%CardError%",
        "a:b",
        ["tenant_id"],
        "7",
    ]
    assert not any(word in one.sql for one in query.conditions for word in ("shop", "mail", "42", "tenant", "a:b"))


@pytest.mark.parametrize(
    ("text", "reads"),
    [
        ("task:x", False),
        ("label:x", False),
        ("key:x", True),
        ("welcome-7", True),
        ("args.a:1", True),
        ("error:x", True),
    ],
)
def test_what_reads_arguments_keys_or_errors_says_so(text: str, reads: bool) -> None:
    assert read(text).reads_payload is reads


def test_signs_of_like_are_characters() -> None:
    (label, task) = read(r"label:50%_\ task:a_b*").conditions
    assert label.params == (r"%50\%\_\\%",)
    assert task.params == (r"a\_b%",)


def test_a_named_argument_is_looked_for_by_its_place_as_well() -> None:
    (condition,) = read(
        "args.tenant_id.x:7", lambda name: [("shop.charge", 1)] if name == "tenant_id" else []
    ).conditions
    assert condition.params == (["tenant_id", "x"], "7", "shop.charge", ["1", "x"], "7")


def test_in_no_more_than_a_hundred_tasks() -> None:
    (condition,) = read("args.a:7", lambda name: ((f"t{n}", 0) for n in range(1000))).conditions
    assert condition.sql.count("job.task") == search.MAX_PLACES


@pytest.mark.parametrize(
    ("text", "reason", "position"),
    [
        ("task:a wroker:b", "field", 7),
        ("colour:red", "field", 0),
        ("task.x:red", "field", 0),
        ("task:", "empty", 5),
        ('label:""', "empty", 6),
        ("id:x", "id", 3),
        ("id:1,", "id", 3),
        (f"id:{2**63}", "id", 3),
        ("99999999999999999999", "id", 0),
        ("args:7", "path", 0),
        ("args.:7", "path", 0),
        ("args.a.b.c.d.e.f:7", "path", 0),
        ("args.a..b:7", "path", 0),
        ("a\0b", "nul", 1),
        ("x" * 501, "long", 500),
        ("a " * 11, "many", 20),
    ],
)
def test_what_cannot_be_read_is_told_with_where_and_why(text: str, reason: str, position: int) -> None:
    with pytest.raises(SearchError) as raised:
        read(text)
    assert (raised.value.reason, raised.value.position) == (reason, position)
    assert str(raised.value)


@given(st.text(max_size=60) | st.from_regex(r"([a-z.]{0,8}:?[\w\"*%]{0,8} ?){0,5}"))
def test_nothing_but_a_query_or_its_own_error(text: str) -> None:
    position = 0
    query = search.Query(())
    try:
        query = read(text, lambda name: [("t", 0)])
    except SearchError as error:
        position = error.position
    assert 0 <= position <= len(text)
    assert all(one.sql.count("%s") == len(one.params) for one in query.conditions)
