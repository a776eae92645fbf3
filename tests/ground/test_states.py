"""The table of arrows, as a table."""

from __future__ import annotations

import inspect

import pytest

from pgqueue_django import transitions
from pgqueue_django.models import Job
from pgqueue_django.states import FINISHED, TRANSITIONS, WAITING, State

# From the design, by hand: a change of the law has to be made twice.
LAW = {
    "enqueue": ("", "queued scheduled"),
    "enqueue_many": ("", "queued scheduled"),
    "promote": ("scheduled retrying", "queued"),
    "adopt": ("scheduled", "queued"),
    "claim": ("queued", "running"),
    "heartbeat": ("running", "running"),
    "settle": ("running", "succeeded retrying failed dead"),
    "release": ("running", "queued scheduled"),
    "reap": ("running", "retrying dead"),
    "disown": ("running", "queued retrying dead"),
    "cancel": ("scheduled queued retrying running", "cancelled"),
    "requeue": ("failed dead cancelled succeeded", "queued scheduled"),
    "run_now": ("scheduled retrying", "queued"),
    "prune": ("succeeded failed dead cancelled", ""),
    "delete": ("succeeded failed dead cancelled", ""),
}


def test_the_table_is_the_law() -> None:
    assert {verb: (set(t.sources), set(t.targets)) for verb, t in TRANSITIONS.items()} == {
        verb: (set(sources.split()), set(targets.split())) for verb, (sources, targets) in LAW.items()
    }


def test_there_are_eight_states_and_they_are_their_own_text() -> None:
    assert len(State) == 8
    assert all(str(state) == state.value == state.name.lower() for state in State)


def test_every_state_fits_its_column_and_is_a_choice_of_it() -> None:
    field = Job._meta.get_field("state")
    assert [value for value, _ in field.choices] == list(State)  # type: ignore[union-attr]
    assert max(map(len, State)) <= field.max_length  # type: ignore[operator]


def test_a_state_is_waiting_or_ready_or_running_or_finished() -> None:
    assert sorted([*WAITING, State.QUEUED, State.RUNNING, *FINISHED]) == sorted(State)


@pytest.mark.parametrize("state", list(State))
def test_every_state_can_be_reached_and_left(state: State) -> None:
    assert any(state in transition.targets for transition in TRANSITIONS.values())
    assert any(state in transition.sources for transition in TRANSITIONS.values())


def test_only_a_person_brings_back_what_has_finished() -> None:
    leaving = {verb for verb, t in TRANSITIONS.items() if set(t.sources) & set(FINISHED)}
    assert leaving == {"requeue", "prune", "delete"}


def test_only_a_claim_makes_a_job_run() -> None:
    starting = {verb for verb, t in TRANSITIONS.items() if State.RUNNING in t.targets}
    assert starting == {"claim", "heartbeat"}


@pytest.mark.parametrize("verb", TRANSITIONS)
def test_every_verb_is_a_function_whose_docstring_begins_with_its_arrow(verb: str) -> None:
    arrow = inspect.getdoc(getattr(transitions, verb))
    assert arrow is not None
    sources, _, rest = arrow.partition(" -> ")
    named = {word.strip(",()") for word in sources.split()} - {""}
    assert named == set(TRANSITIONS[verb].sources)
    for target in TRANSITIONS[verb].targets or ("gone",):
        assert target in rest.split("\n\n")[0]
