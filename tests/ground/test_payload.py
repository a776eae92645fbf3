"""Whatever is enqueued or returned is either refused, with its path and a remedy, or comes back equal.

Needs no database. Annotations of this module are strings; ``shaped`` also tries them as objects.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import functools
import json
import math
import pathlib
import subprocess
import sys
import types
import typing
import uuid
from typing import TYPE_CHECKING, Any, TypedDict

import pydantic
import pytest
from django.utils.functional import SimpleLazyObject
from django.utils.translation import gettext_lazy
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pgqueue_django import payload
from pgqueue_django.exceptions import InvalidPayload, PgQueueError
from pgqueue_django.models import Job
from pgqueue_django.payload import MAX_DEPTH, Signature, dump, load, storable_text, untyped

if TYPE_CHECKING:
    from nowhere import OnlyForTypeCheckers

thorough = settings(
    max_examples=2000, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck), database=None
)

# Values ------------------------------------------------------------------------------------------------------


class Word(enum.StrEnum):
    PAID = "paid"


class Number(enum.IntEnum):
    THREE = 3


class Plain(enum.Enum):
    ONE = 1


class Hostile:
    """Everything that a message could call raises."""

    def __str__(self) -> str:
        raise RuntimeError("str")

    def __repr__(self) -> str:
        raise RuntimeError("repr")

    def __format__(self, spec: str) -> str:
        raise RuntimeError("format")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("eq")

    __hash__ = object.__hash__


class HostileText(str):
    __slots__ = ()

    def __str__(self) -> str:
        raise RuntimeError("str")

    __repr__ = __str__

    def replace(self, *args: Any) -> str:  # type: ignore[override]
        raise RuntimeError("replace")


class Repeating(collections.UserDict[str, int]):
    def items(self) -> Any:
        return [("a", 1), ("a", 2)]


Pair = collections.namedtuple("Pair", "left right")

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
    | st.sampled_from([Word.PAID, Number.THREE, "\\u0000", "\\\\u0000", "\ufffe", 10**4299, 5e-324, -0.0, 1e308])
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(texts, inner, max_size=4)
        | st.dictionaries(texts, inner, max_size=4).map(types.MappingProxyType)
    ),
    max_leaves=20,
)


def normal(value: Any) -> Any:
    """What JSON makes of an accepted value."""
    if isinstance(value, dict | types.MappingProxyType):
        return {key: normal(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [normal(item) for item in value]
    return value


@thorough
@given(values)
def test_what_is_accepted_comes_back_equal(value: Any) -> None:
    text = dump(value, where="result", limit=None)
    text.encode()
    assert json.loads(text) == normal(value)
    assert json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":")) == text


REFUSED: list[tuple[Any, str]] = [
    (math.nan, "pass None or a string"),
    (math.inf, "pass None or a string"),
    (-math.inf, "pass None or a string"),
    (float("1e400"), "pass None or a string"),
    ("a\0b", 'text.replace("\\0", "")'),
    ("\\\0", 'text.replace("\\0", "")'),
    ("\udc80", 'errors="replace"'),
    ("\ud83d\ude00", 'errors="replace"'),
    ({"a\0": 1}, "has a key with a NUL"),
    ({"\udc80": 1}, "has a key with a lone surrogate"),
    ({1: "a"}, "has a key of type int: use string keys"),
    ({1: "a", "1": "b"}, "use string keys"),
    ({None: "a"}, "use string keys"),
    ({True: "a"}, "use string keys"),
    ({1.5: "a"}, "use string keys"),
    ({("a",): "a"}, "use string keys"),
    ({Hostile(): "a"}, "has a key of type Hostile: use string keys"),
    (collections.OrderedDict({1: "a"}), "use string keys"),
    (types.MappingProxyType({1: "a"}), "use string keys"),
    (10**4300, "pass hex(value)"),
    (-(10**5000), "pass hex(value)"),
    (b"a", "base64"),
    (bytearray(b"a"), "base64"),
    ({1}, "sorted(value)"),
    (frozenset({1}), "sorted(value)"),
    (decimal.Decimal("NaN"), "pass str(value)"),
    (uuid.UUID(int=1), "pass str(value)"),
    (pathlib.PurePath("a"), "pass str(value)"),
    (datetime.datetime(2026, 1, 1), "value.isoformat()"),
    (datetime.date(2026, 1, 1), "value.isoformat()"),
    (datetime.time(1), "value.isoformat()"),
    (datetime.timedelta(1), "value.total_seconds()"),
    (Plain.ONE, "value.value"),
    (gettext_lazy("hello"), "pass str(value)"),
    (Job(pk=1), "pass its primary key"),
    (Job.objects.all(), "pass a list of primary keys"),
    (Hostile(), "is of type Hostile, which JSON cannot hold: pass strings, numbers"),
    (Hostile, "pass strings, numbers"),
    (iter([1]), "pass strings, numbers"),
    (collections.deque([1]), "pass strings, numbers"),
    (1j, "pass strings, numbers"),
]
wrappers = st.lists(st.tuples(st.booleans(), st.integers(0, 3) | texts, scalars), max_size=5)


def wrapped(value: Any, layers: list[tuple[bool, int | str, Any]]) -> tuple[Any, str]:
    """``value`` inside lists and dicts, among other values, and the path to it."""
    path = ""
    for as_tuple, step, other in layers:
        if isinstance(step, int):
            items = [other] * step + [value]
            value = tuple(items) if as_tuple else items
        else:
            value = {step + "x": other, step: value}
        path = f"[{step[:60] if isinstance(step, str) else step!r}]{path}"
    return value, "args" + path


@pytest.mark.parametrize("number", range(len(REFUSED)))
@settings(thorough, max_examples=50)
@given(layers=wrappers)
@example(layers=[])
@example(layers=[(True, 0, None)])
@example(layers=[(True, "a\nb'\u2028", None), (False, 3, [])])
def test_what_is_refused_is_named_with_its_path_and_a_remedy(number: int, layers: Any) -> None:
    value, remedy = REFUSED[number]  # not a parameter: the values' repr() may raise
    inside, path = wrapped(value, layers)
    with pytest.raises(InvalidPayload) as caught:
        dump(inside, where="args", limit=None)
    message = str(caught.value)
    assert message.startswith(f"{path} "), message
    assert remedy in message
    assert storable_text(message) == message
    assert caught.value.__context__ is caught.value.__cause__


def test_paths_begin_at_the_argument_that_is_wrong() -> None:
    bad = {"order": {"lines": [0, 0, 0, math.nan]}}
    with pytest.raises(InvalidPayload, match=r"^kwargs\['order'\]\['lines'\]\[3\] is NaN"):
        untyped((), bad, limit=None)
    with pytest.raises(InvalidPayload, match=r"^args\[1\] is NaN"):
        untyped((1, math.nan), {}, limit=None)
    with pytest.raises(InvalidPayload, match=r"^result\['t'\] holds a NUL"):
        dump({"t": "a\0b"}, where="result", limit=None)


def test_a_refusal_is_a_value_error_of_ours() -> None:
    with pytest.raises(ValueError) as caught:
        dump(math.nan, where="result", limit=None)
    assert isinstance(caught.value, PgQueueError)


def test_the_text_of_an_escaped_nul_is_no_nul() -> None:
    for text in ("\\u0000", "\\\\u0000", "a\\\\\\u0000"):
        assert json.loads(dump([text], where="result", limit=None)) == [text]
        with pytest.raises(InvalidPayload):
            dump([text + "\0"], where="result", limit=None)


def test_text_is_written_compactly_and_as_it_is() -> None:
    assert dump({"é": [1, "ü"]}, where="result", limit=None) == '{"é":[1,"ü"]}'
    for value, text in ((None, "null"), (True, "true"), ("a", '"a"'), (Word.PAID, '"paid"'), (Pair(1, 2), "[1,2]")):
        assert dump(value, where="result", limit=None) == text
    assert (
        dump({"n": Number.THREE, HostileText("k"): HostileText("v")}, where="result", limit=None) == '{"n":3,"k":"v"}'
    )
    odd = types.MappingProxyType({HostileText("k"): HostileText("v")})
    assert dump(odd, where="result", limit=None) == '{"k":"v"}'
    assert dump(collections.OrderedDict(a=Number.THREE, b=(1.5,)), where="r", limit=None) == '{"a":3,"b":[1.5]}'


def test_a_mapping_that_gives_a_key_twice_is_refused() -> None:
    with pytest.raises(InvalidPayload, match=r"^result\['m'\]\['a'\] is there twice: keep one"):
        dump({"m": Repeating()}, where="result", limit=None)


def test_lazy_objects_are_not_evaluated() -> None:
    """request.user is one: asking it for its class would run a query."""
    lazy = SimpleLazyObject(lambda: pytest.fail("evaluated"))
    with pytest.raises(InvalidPayload, match=r"^args\[0\] is of type SimpleLazyObject.* primary key"):
        untyped((lazy,), {}, limit=None)


def nested(depth: int, inner: Any = 0) -> Any:
    for level in range(depth):
        inner = [inner] if level % 2 else {"k": inner}
    return inner


@pytest.mark.parametrize("inner", [0, Pair(0, 0)], ids=["plain", "unusual"])
def test_nesting_ends_at_a_hundred(inner: Any) -> None:
    extra = isinstance(inner, tuple)
    assert dump(nested(MAX_DEPTH - extra, inner), where="result", limit=None)
    for depth in (MAX_DEPTH + 1, 100_000):
        with pytest.raises(InvalidPayload, match=r"^result\[.*\] goes deeper than 100 levels.*flatten it"):
            dump(nested(depth - extra, inner), where="result", limit=None)


def test_what_holds_itself_is_too_deep() -> None:
    wide: list[Any] = [{"a": [1, 2]}]
    wide += [wide, wide]
    odd: dict[str, Any] = collections.OrderedDict()
    odd["self"] = odd
    for value in (wide, odd, {"k": wide}):
        with pytest.raises(InvalidPayload, match="or holds itself: flatten it"):
            dump(value, where="result", limit=None)


def test_the_limit_is_in_bytes_and_in_the_message() -> None:
    assert dump("é" * 10, where="result", limit=22)
    with pytest.raises(
        InvalidPayload, match=r'^result: 22 bytes of JSON, and PGQUEUE\["MAX_PAYLOAD_BYTES"\] allows 21: store'
    ):
        dump("é" * 10, where="result", limit=21)
    assert untyped(("é",), {"a": 1}, limit=13) == ('["é"]', '{"a":1}')
    with pytest.raises(InvalidPayload, match=r"^args and kwargs: 13 bytes.* allows 12"):
        untyped(("é",), {"a": 1}, limit=12)
    with pytest.raises(InvalidPayload, match="4 bytes"):
        untyped((), {}, limit=3)


def test_ten_megabytes() -> None:
    for text in ("a" * 10**7, "é" * 10**7, "\\" * 10**7, '"' * 10**7):
        assert json.loads(dump({"t": text}, where="result", limit=None)) == {"t": text}
        with pytest.raises(InvalidPayload, match="allows 262,144"):
            dump({"t": text}, where="result", limit=256 * 1024)
    with pytest.raises(InvalidPayload, match="NUL"):
        dump({"t": "a" * 10**7 + "\0"}, where="result", limit=None)


def test_long_keys_do_not_make_long_messages() -> None:
    with pytest.raises(InvalidPayload) as caught:
        dump({"k" * 10**6: math.nan}, where="result", limit=None)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("args_json", "kwargs_json", "problem"),
    [
        ("{}", "{}", "args must be a list, not dict"),
        ("[]", "[]", "kwargs must be a dict, not list"),
        ("null", "{}", "args must be a list, not NoneType"),
        ("[", "{}", "args cannot be read"),
        ("[" * 10**5, "{}", "args cannot be read"),
        ("[]", '{"a": ' + "9" * 5000 + "}", "kwargs cannot be read"),
    ],
)
def test_what_no_task_wrote_is_refused_when_read(args_json: str, kwargs_json: str, problem: str) -> None:
    with pytest.raises(InvalidPayload, match=problem):
        load(args_json, kwargs_json)


@settings(thorough, max_examples=200)
@given(st.lists(values, max_size=3), st.dictionaries(texts, values, max_size=3))
def test_untyped_arguments_come_back(args: list[Any], kwargs: dict[str, Any]) -> None:
    assert load(*untyped(tuple(args), kwargs, limit=None)) == (normal(args), normal(kwargs))


# Error texts -------------------------------------------------------------------------------------------------


@thorough
@given(st.text(st.characters(), max_size=300), st.none() | st.integers(-3, 320))
@example("\0" * 100, 150)
@example("a" * 1000, 999)
def test_error_texts_are_made_storable(text: str, limit: int | None) -> None:
    stored = storable_text(text, limit)
    assert "\0" not in stored.encode().decode()
    if limit is not None:
        assert len(stored) <= max(limit, 0)
    if "\0" not in text and not any("\ud800" <= c <= "\udfff" for c in text) and len(text) <= (limit or 300):
        assert stored == text or limit == 0 or (limit or 0) < 0


def test_error_texts_show_what_was_there() -> None:
    assert storable_text("a\0b\udc80é") == "a\\x00b\\udc80é"
    assert storable_text(HostileText("a\0")) == "a\\x00"


def test_error_texts_lose_their_middle() -> None:
    stored = storable_text("head" + "-" * 200_000 + "tail", 1000)
    assert len(stored) == 1000
    assert stored.startswith("head---")
    assert stored.endswith("---tail")
    kept = stored.count("-") + 8
    assert f"\n[… {200_008 - kept:,} characters left out …]\n" in stored
    assert storable_text("a" * 100, 10) == "a" * 10


# Calls -------------------------------------------------------------------------------------------------------


def nothing() -> None: ...
def two(a: int, b: int) -> None: ...
def optional(a: int, b: int = 2, *, c: int, d: int = 4) -> None: ...
def only_keywords(*, a: int, b: int = 2) -> None: ...
def only_positions(a: int, b: int = 2, /) -> None: ...
def mixed(a: int, /, b: int, *rest: int, c: int = 3, **extra: int) -> None: ...
def anything(*rest: int, **extra: int) -> None: ...
def mixed_defaults(a: int = 1, /, b: int = 2, *, c: int, **extra: int) -> None: ...
def rest_then_keywords(a: int, *rest: int, b: int) -> None: ...
def unhashable_default(a: int, b: Any = [], *, c: Any = {}) -> None: ...  # noqa: B006


FUNCTIONS = [
    nothing,
    two,
    optional,
    only_keywords,
    only_positions,
    mixed,
    anything,
    mixed_defaults,
    rest_then_keywords,
    unhashable_default,
]
names = st.sampled_from("abcd")


@thorough
@given(st.sampled_from(FUNCTIONS), st.lists(st.integers(), max_size=4), st.dictionaries(names, st.integers()))
def test_a_call_is_refused_exactly_when_the_function_would(func: Any, args: list[int], kwargs: dict[str, int]) -> None:
    signature = Signature(func, False)
    try:
        func(*args, **kwargs)
    except TypeError:
        with pytest.raises(TypeError, match=rf"^{func.__name__}\(\): ."):
            signature.encode(args, kwargs, limit=None)
        with pytest.raises(InvalidPayload, match=rf"do not fit its task any more: {func.__name__}\(\): .") as caught:
            signature.decode(json.dumps(args), json.dumps(kwargs))
        assert isinstance(caught.value.__cause__, TypeError)
    else:
        texts = signature.encode(args, kwargs, limit=None)
        assert texts == untyped(args, kwargs, limit=None)
        assert signature.decode(*texts) == (args, kwargs)


def test_messages_of_wrong_calls() -> None:
    signature = Signature(two, False)
    with pytest.raises(TypeError, match=r"^two\(\): missing a required argument: 'b'$"):
        signature.bind((1,), {})
    with pytest.raises(TypeError, match=r"^two\(\): too many positional arguments$"):
        signature.bind((1, 2, 3), {})
    with pytest.raises(TypeError, match=r"^two\(\): got an unexpected keyword argument 'c'$"):
        signature.bind((1, 2), {"c": 3})
    with pytest.raises(TypeError, match=r"^two\(\): multiple values for argument 'a'$"):
        signature.bind((1,), {"a": 1, "b": 2})


def test_a_wrong_call_comes_before_a_wrong_value() -> None:
    with pytest.raises(TypeError):
        Signature(two, False).encode((math.nan,), {}, limit=None)
    with pytest.raises(InvalidPayload, match=r"kwargs\['b'\] is NaN"):
        Signature(two, False).encode((1,), {"b": math.nan}, limit=None)


def test_the_context_is_no_argument() -> None:
    signature = Signature(two, True)
    assert signature.decode(*signature.encode((), {"b": 1}, limit=None)) == ([], {"b": 1})
    with pytest.raises(TypeError, match="unexpected keyword argument 'a'"):
        signature.bind((1,), {"a": 1})
    with pytest.raises(TypeError, match="too many"):
        signature.bind((1, 2), {})
    Signature(anything, True).bind((1, 2), {})
    for func in (nothing, only_keywords, lambda **extra: None):
        with pytest.raises(TypeError, match=r"\(\) has no first positional parameter to take the context"):
            Signature(func, True)


def test_the_limit_counts_both_texts_of_a_call() -> None:
    assert Signature(two, False).encode((1,), {"b": 2}, limit=10)
    with pytest.raises(InvalidPayload, match="args and kwargs: 10 bytes"):
        Signature(two, False).encode((1,), {"b": 2}, limit=9)


def test_defaults_are_not_written() -> None:
    assert Signature(optional, False).encode((1,), {"c": 3}, limit=None) == ("[1]", '{"c":3}')


# Annotated parameters ----------------------------------------------------------------------------------------


class Address(TypedDict):
    street: str


@dataclasses.dataclass
class Line:
    sku: str
    quantity: int = 1
    price: float = 0.0
    tags: list[str] = dataclasses.field(default_factory=list)
    status: Word | None = None
    total: float = dataclasses.field(init=False, default=0.0)

    def __post_init__(self) -> None:
        if self.quantity < 0:
            raise ValueError("quantity is negative")
        self.total = self.quantity * self.price


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    number: int
    lines: list[Line] = dataclasses.field(default_factory=list)
    gift: Line | None = None
    paid: bool = False
    address: Address | None = None
    notes: dict[str, int] | None = None
    extra: Any = None
    kind: Plain | None = None
    parent: Order | None = None


@dataclasses.dataclass(frozen=True)
class BigOrder(Order):
    size: int = 0


@dataclasses.dataclass
class Fresh:
    id: str = dataclasses.field(default_factory=lambda: str(uuid.uuid4()))


@dataclasses.dataclass
class HalfKnown:
    line: Line
    other: OnlyForTypeCheckers


class Item(pydantic.BaseModel):
    sku: str
    price: decimal.Decimal = decimal.Decimal(0)
    at: datetime.datetime | None = None
    note: str = pydantic.Field("", alias="remark")


class Cart(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    number: int = pydantic.Field(validation_alias="no", serialization_alias="num", ge=0)
    items: list[Item] = []
    token: str = pydantic.Field(default_factory=lambda: str(uuid.uuid4()))

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def count(self) -> int:
        return len(self.items)


class StrictItem(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)

    at: datetime.date
    seen: set[int] = set()


class BigCart(Cart):
    size: int = 0


class Secret(pydantic.BaseModel):
    password: pydantic.SecretStr


class Loose(pydantic.BaseModel):
    number: float


ORDER = Order(
    number=1,
    lines=[Line("a", 2, 1.5, ["x"], Word.PAID), Line("é")],
    gift=Line("b"),
    address={"street": "Main"},
    notes={"a": 1},
    extra=[1, {"b": None}],
    kind=Plain.ONE,
    parent=Order(number=0),
)
CART = Cart(no=1, items=[Item(sku="a", price="1.10", at="2026-01-01T00:00:00Z", remark="n"), Item(sku="b")])


def takes_order(value: Order) -> None: ...
def takes_optional_order(value: Order | None = None) -> None: ...
def takes_old_optional_order(value: typing.Optional[Order] = None) -> None: ...  # noqa: UP045
def takes_none_or_order(value: None | Order) -> None: ...  # noqa: RUF036
def takes_orders(value: list[Order]) -> None: ...
def takes_optional_orders(value: list[Order | None] | None) -> None: ...
def takes_all_orders(*value: Order) -> None: ...
def takes_named_orders(**value: Order) -> None: ...
def takes_keyword_order(*, value: Order) -> None: ...
def takes_positional_order(value: Order, /, **others: int) -> None: ...
def takes_annotated_order(value: typing.Annotated[Order, "checked"]) -> None: ...
def takes_cart(value: Cart) -> None: ...
def takes_optional_cart(value: Cart | None = None) -> None: ...
def takes_old_optional_cart(value: typing.Optional[Cart] = None) -> None: ...  # noqa: UP045
def takes_carts(value: list[Cart]) -> None: ...
def takes_all_carts(*value: Cart) -> None: ...
def takes_named_carts(**value: Cart) -> None: ...
def takes_strict(value: StrictItem) -> None: ...
def takes_secret(value: Secret) -> None: ...
def takes_loose(value: Loose) -> None: ...
def takes_fresh(value: Fresh) -> None: ...
def takes_half_known(value: HalfKnown) -> None: ...
def takes_many(first: int, value: Order, *rest: Cart, last: Line, **extra: Item) -> None: ...
def takes_unknown(value: Order, other: OnlyForTypeCheckers, last: NoSuchName) -> NoSuchName: ...  # noqa: F821


def objects(func: Any) -> Any:
    """The function with its annotations evaluated, as without the future import."""
    copy = types.FunctionType(func.__code__, func.__globals__, func.__name__, func.__defaults__, func.__closure__)
    copy.__kwdefaults__ = func.__kwdefaults__
    copy.__annotations__ = typing.get_type_hints(func, include_extras=True)
    return copy


SHAPES: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (takes_order, (ORDER,), {}),
    (takes_order, (), {"value": ORDER}),
    (takes_optional_order, (ORDER,), {}),
    (takes_optional_order, (None,), {}),
    (takes_optional_order, (), {}),
    (takes_old_optional_order, (ORDER,), {}),
    (takes_none_or_order, (ORDER,), {}),
    (takes_orders, ([ORDER, ORDER],), {}),
    (takes_orders, ([],), {}),
    (takes_optional_orders, ([None, ORDER],), {}),
    (takes_optional_orders, (None,), {}),
    (takes_all_orders, (ORDER, ORDER), {}),
    (takes_named_orders, (), {"a": ORDER, "value": ORDER}),
    (takes_keyword_order, (), {"value": ORDER}),
    (takes_positional_order, (ORDER,), {"value": 1}),
    (takes_annotated_order, (ORDER,), {}),
    (takes_cart, (CART,), {}),
    (takes_optional_cart, (CART,), {}),
    (takes_optional_cart, (None,), {}),
    (takes_old_optional_cart, (CART,), {}),
    (takes_carts, ([CART, CART],), {}),
    (takes_all_carts, (CART, CART), {}),
    (takes_named_carts, (), {"a": CART, "value": CART}),
    (takes_strict, (StrictItem(at=datetime.date(2026, 1, 1), seen={1, 2}),), {}),
    (takes_many, (1, ORDER, CART, CART), {"last": Line("l"), "first_extra": Item(sku="x"), "b": Item(sku="y")}),
]


@pytest.mark.parametrize("shaped", [lambda func: func, objects], ids=["strings", "objects"])
@pytest.mark.parametrize(("func", "args", "kwargs"), SHAPES, ids=range(len(SHAPES)))
def test_annotated_arguments_come_back_as_they_went(shaped: Any, func: Any, args: Any, kwargs: Any) -> None:
    signature = Signature(shaped(func), False)
    texts = signature.encode(args, kwargs, limit=None)
    back = signature.decode(*texts)
    assert back == (list(args), kwargs)
    assert [type(value) for value in back[0]] == [type(value) for value in args]
    assert untyped(*load(*texts), limit=None) == texts, "no JSON"


@pytest.mark.parametrize("shaped", [lambda func: func, objects], ids=["strings", "objects"])
@pytest.mark.parametrize(
    ("func", "value", "made"),
    [
        (takes_order, {"number": 1, "lines": [{"sku": "a"}]}, Order(number=1, lines=[Line("a")])),
        (takes_order, {"number": 1, "lines": (Line("a"),)}, Order(number=1, lines=[Line("a")])),
        (takes_order, types.MappingProxyType({"number": 1}), Order(number=1)),
        (takes_orders, ({"number": 1}, Order(number=2)), [Order(number=1), Order(number=2)]),
        (takes_order, {"number": 1, "lines": [{"sku": "a", "status": "paid"}]}, None),
        (takes_order, {"number": 1, "lines": [{"sku": "a", "status": Word.PAID}]}, None),
        (takes_cart, {"no": 1, "items": [{"sku": "a"}], "token": "t"}, Cart(no=1, items=[Item(sku="a")], token="t")),
        (takes_cart, {"number": "1", "items": [Item(sku="a")], "token": "t"}, None),
        (takes_strict, {"at": datetime.date(2026, 1, 1)}, StrictItem(at=datetime.date(2026, 1, 1))),
    ],
)
def test_a_dict_that_makes_one_is_taken_for_it(shaped: Any, func: Any, value: Any, made: Any) -> None:
    signature = Signature(shaped(func), False)
    (back,), _ = signature.decode(*signature.encode((value,), {}, limit=None))
    if made is not None:
        assert back == made
    if func is not takes_cart or "token" in value:
        again, once = signature.encode((back,), {}, limit=None), signature.encode((value,), {}, limit=None)
        assert load(*again) == load(*once)


def test_all_fields_are_written_with_their_defaults_of_now() -> None:
    text, _ = Signature(takes_order, False).encode(({"number": 1},), {}, limit=None)
    assert json.loads(text)[0].keys() == {field.name for field in dataclasses.fields(Order)}
    text, _ = Signature(takes_order, False).encode((Order(number=1, lines=[Line("a")]),), {}, limit=None)
    assert "total" not in json.loads(text)[0]["lines"][0]
    assert json.loads(Signature(takes_cart, False).encode(({"no": 1},), {}, limit=None)[0])[0].keys() == {
        "number",
        "items",
        "token",
    }
    for func in (takes_fresh, takes_cart):
        signature = Signature(func, False)
        texts = signature.encode(({"no": 1} if func is takes_cart else {},), {}, limit=None)
        assert signature.decode(*texts) == signature.decode(*texts), "a default was made by the worker"


def test_a_float_field_gets_a_float() -> None:
    """jsonb gives 1e22 back as an int."""
    signature = Signature(takes_order, False)
    order, _ = signature.decode('[{"number": 1, "gift": {"sku": "a", "price": 10000000000000000000000}}]', "{}")
    assert repr(order[0].gift.price) == "1e+22"


MISFITS: list[tuple[Any, Any, str]] = [
    (takes_order, Order(number="1"), r"args\[0\]\['number'\] must be int, not str"),  # type: ignore[arg-type]
    (takes_order, Order(number=True), r"args\[0\]\['number'\] must be int, not bool"),
    (takes_order, Order(number=1, paid=1), r"args\[0\]\['paid'\] must be bool, not int"),  # type: ignore[arg-type]
    (takes_order, Order(number=math.nan), r"args\[0\]\['number'\] is NaN"),  # type: ignore[arg-type]
    (takes_order, Order(number=1, notes=[1]), r"\['notes'\] must be dict, not list"),  # type: ignore[arg-type]
    (takes_order, Order(number=1, address=1), r"\['address'\] must be dict, not int"),  # type: ignore[arg-type]
    (takes_order, Order(number=1, lines=[Line("a", price="x")]), r"\['lines'\]\[0\]\['price'\] must be float"),  # type: ignore[arg-type]
    (takes_order, Order(number=1, lines=[Line("a", tags="bc")]), r"\['tags'\] must be a list, not str"),  # type: ignore[arg-type]
    (takes_order, Order(number=1, lines=[Line("a", tags=["b", 1])]), r"\['tags'\]\[1\] must be str, not int"),  # type: ignore[list-item]
    (takes_order, Order(number=1, lines={}), r"args\[0\]\['lines'\] must be a list, not dict"),  # type: ignore[arg-type]
    (takes_order, Order(number=1, gift=Line("a", status="no")), r"\['gift'\]\['status'\] is no Word"),  # type: ignore[arg-type]
    (takes_order, Order(number=1, gift=Line("a", price=10**400)), r"\['price'\] is no float"),
    (takes_order, Order(number=1, extra=uuid.UUID(int=1)), r"\['extra'\] is of type UUID.*str\(value\)"),
    (takes_order, Order(number=1, gift=ORDER), r"\['gift'\] must be exactly Line or a dict of its fields"),  # type: ignore[arg-type]
    (takes_order, {"number": 1, "gift": {"sku": "a", "quantity": -1}}, r"\['gift'\] is no valid Line: ValueError: q"),
    (takes_order, {"number": 1, "gift": {}}, r"args\[0\]\['gift'\] is no valid Line: TypeError: .*'sku'"),
    (takes_order, {"number": 1, "nubmer": 1}, r"args\[0\]\['nubmer'\] is no field of Order, which has number, lines"),
    (takes_order, {"number": 1, "gift": {"sku": "a", "total": 1}}, r"\['gift'\]\['total'\] is no field of Line"),
    (takes_order, {1: 1}, r"args\[0\] is no field of Order"),
    (takes_order, 5, r"args\[0\] must be exactly Order or a dict of its fields, not int"),
    (takes_order, None, r"args\[0\] must be exactly Order or a dict of its fields, not NoneType"),
    (takes_order, BigOrder(number=1), r"args\[0\] must be exactly Order or a dict of its fields, not BigOrder"),
    (takes_orders, [ORDER, 5], r"args\[0\]\[1\] must be exactly Order"),
    (takes_orders, ORDER, r"args\[0\] must be a list, not Order"),
    (takes_cart, {"no": -1}, r"args\[0\]\['no'\] does not fit Cart: Input should be greater than"),
    (takes_cart, {"no": -1, "what": 1}, r"args\[0\]\['no'\] does not fit Cart: .* \(and 1 more\)"),
    (takes_cart, {"no": 1, "items": [{}]}, r"args\[0\]\['items'\]\[0\]\['sku'\] does not fit Cart: Field required"),
    (takes_cart, Cart.model_construct(number=-1), r"args\[0\]\['number'\] does not fit Cart"),
    (takes_cart, Cart.model_construct(number="x"), r"args\[0\]\['number'\] does not fit Cart"),
    (takes_cart, Cart.model_construct(number=Hostile()), r"args\[0\] does not fit Cart"),
    (takes_cart, CART.model_copy(update={"token": "a\0"}), r"args\[0\]\['token'\] holds a NUL"),
    (takes_cart, BigCart(no=1), r"args\[0\] must be exactly Cart or a dict of its fields, not BigCart"),
    (takes_cart, 5, r"args\[0\] does not fit Cart"),
    (takes_cart, ORDER, r"args\[0\] does not fit Cart"),
    (takes_secret, Secret(password=pydantic.SecretStr("s3")), r"args\[0\] is a Secret with a field that JSON changes"),
    (takes_loose, Loose(number=math.inf), r"args\[0\]\['number'\] "),
    (
        two,
        ORDER,
        r"args\[0\] is of type Order.*annotate the task's parameter with Order, Order \| None or list\[Order\]",
    ),
    (two, CART, r"args\[0\] is of type Cart.*annotate the task's parameter with Cart"),
]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("func", "value", "problem"), MISFITS, ids=range(len(MISFITS)))
def test_what_does_not_fit_its_annotation_is_refused_at_enqueue(func: Any, value: Any, problem: str) -> None:
    args = (value, 1) if func is two else (value,)
    with pytest.raises(InvalidPayload, match=problem) as caught:
        Signature(func, False).encode(args, {}, limit=None)
    assert str(caught.value).startswith("args[0]")


def test_a_keyword_is_named_in_the_path() -> None:
    for func in (takes_order, takes_named_orders, takes_keyword_order):
        with pytest.raises(InvalidPayload, match=r"^kwargs\['value'\]\['number'\] must be int"):
            Signature(func, False).encode((), {"value": {"number": "1"}}, limit=None)
    with pytest.raises(InvalidPayload, match=r"^args\[1\]\['number'\] must be int"):
        Signature(takes_all_orders, False).encode((ORDER, {"number": "1"}), {}, limit=None)


DRIFT = [
    (takes_order, '[{"number": 1, "gone": 2}]', r"args\[0\]\['gone'\] is no field"),
    (takes_order, '[{"lines": []}]', r"args\[0\] is no valid Order: TypeError: .*'number'"),
    (takes_order, '[{"number": 1, "lines": [{"sku": 5}]}]', r"args\[0\]\['lines'\]\[0\]\['sku'\] must be str, not int"),
    (takes_order, "[[1]]", r"args\[0\] must hold the fields of Order, not be a list"),
    (takes_order, "[null]", r"args\[0\] must hold the fields of Order, not be a NoneType"),
    (takes_orders, '[{"number": 1}]', r"args\[0\] must be a list, not dict"),
    (takes_order, "[]", r"missing a required argument: 'value'"),
    (takes_order, "[1, 2]", r"too many positional arguments"),
    (takes_cart, '[{"no": 1, "gone": 2}]', r"args\[0\]\['gone'\] does not fit Cart: Extra inputs"),
    (takes_cart, '[{"items": []}]', r"args\[0\]\['no'\] does not fit Cart: Field required"),
    (takes_cart, "[null]", r"args\[0\] does not fit Cart"),
    (takes_order, "[" + '{"number": 1, "parent": ' * 200 + "null" + "}" * 200 + "]", "goes deeper than 100 levels"),
]


@pytest.mark.parametrize(("func", "args_json", "problem"), DRIFT, ids=range(len(DRIFT)))
def test_a_job_that_its_task_no_longer_takes_is_refused_by_the_worker(func: Any, args_json: str, problem: str) -> None:
    with pytest.raises(InvalidPayload, match=problem):
        Signature(func, False).decode(args_json, "{}")


def test_a_new_field_with_a_default_takes_older_jobs() -> None:
    assert Signature(takes_order, False).decode('[{"number": 1}]', "{}") == ([Order(number=1)], {})


def test_an_order_that_holds_itself_is_too_deep() -> None:
    order: Any = {"number": 1}
    order["parent"] = order
    with pytest.raises(InvalidPayload, match="goes deeper than 100 levels"):
        Signature(takes_order, False).encode((order,), {}, limit=None)


def test_a_hostile_error_of_a_dataclass_is_still_a_refusal() -> None:
    class Odd(ValueError):
        def __str__(self) -> str:
            raise RuntimeError("str")

    @dataclasses.dataclass
    class Refuses:
        number: int

        def __post_init__(self) -> None:
            raise Odd

    def takes(value: Any) -> None: ...

    takes.__annotations__["value"] = Refuses
    with pytest.raises(InvalidPayload, match=r"args\[0\] is no valid Refuses: .*Odd: <exception str\(\) failed>"):
        Signature(takes, False).encode(({"number": 1},), {}, limit=None)


def test_fields_of_classes_without_a_json_form_are_refused_with_a_remedy() -> None:
    @dataclasses.dataclass
    class Dated:
        at: datetime.date
        pair: tuple[int, int] = (1, 2)

    def takes(value: Any) -> None: ...

    takes.__annotations__["value"] = Dated
    Dated.__annotations__.update(at=datetime.date, pair=tuple[int, int])
    signature = Signature(takes, False)
    with pytest.raises(InvalidPayload, match=r"\['at'\] is of type date.*isoformat"):
        signature.encode((Dated(datetime.date(2026, 1, 1)),), {}, limit=None)
    with pytest.raises(InvalidPayload, match=r"\['at'\] must be date, not str \(JSON has no date: declare"):
        signature.encode((Dated("2026-01-01"),), {}, limit=None)  # type: ignore[arg-type]


def test_annotations_that_cannot_be_resolved_are_plain_json_and_leave_the_others_alone() -> None:
    signature = Signature(takes_unknown, False)
    texts = signature.encode((ORDER, 1, {"a": 2}), {}, limit=None)
    assert signature.decode(*texts) == ([ORDER, 1, {"a": 2}], {})


def test_a_field_that_cannot_be_resolved_is_plain_json_and_leaves_the_others_alone() -> None:
    signature = Signature(takes_half_known, False)
    value = HalfKnown(Line("a"), {"any": 1})
    assert signature.decode(*signature.encode((value,), {}, limit=None)) == ([value], {})


def test_annotations_are_resolved_at_the_first_call() -> None:
    namespace: dict[str, Any] = {}
    exec("def later(value: 'Later') -> None: ...", namespace)
    signature = Signature(namespace["later"], False)
    namespace["Later"] = Line
    assert signature.decode(*signature.encode((Line("a"),), {}, limit=None)) == ([Line("a")], {})


def test_a_decorated_function_is_read_through_its_decorator() -> None:
    def bare(*args: Any, **kwargs: Any) -> None: ...

    elsewhere: dict[str, Any] = {}  # a module that knows no Order
    wrapper = functools.wraps(takes_order)(types.FunctionType(bare.__code__, elsewhere))

    signature = Signature(wrapper, False)
    assert signature.decode(*signature.encode((ORDER,), {}, limit=None)) == ([ORDER], {})
    with pytest.raises(TypeError, match=r"takes_order\(\): missing"):
        signature.bind((), {})


def test_values_of_plain_parameters_are_not_looked_into() -> None:
    def plain(a: int, b: list[int], c: dict[str, Order], d: Any, e: tuple[int, ...], f: Order | Line) -> None: ...

    signature = Signature(plain, False)
    args = ["text", None, {"a": {}}, 1.5, "x", {"sku": 1}]
    assert signature.decode(*signature.encode(args, {}, limit=None)) == (args, {})


orders = st.builds(
    Order,
    number=st.integers(),
    lines=st.lists(
        st.builds(
            Line,
            texts,
            st.integers(0),
            st.floats(allow_nan=False, allow_infinity=False),
            st.lists(texts, max_size=2),
            st.none() | st.just(Word.PAID),
        ),
        max_size=3,
    ),
    notes=st.none() | st.dictionaries(texts, st.integers(), max_size=2),
    extra=values.map(normal),
)
carts = st.builds(
    Cart,
    no=st.integers(0, 10**18),
    items=st.lists(
        st.builds(
            Item,
            sku=texts,
            price=st.decimals(allow_nan=False, allow_infinity=False),
            at=st.none() | st.datetimes(timezones=st.just(datetime.UTC)),
        ),
        max_size=3,
    ),
)


@settings(thorough, max_examples=500)
@given(orders | st.just(ORDER), carts, st.booleans())
def test_any_order_and_cart_come_back(order: Order, cart: Cart, by_name: bool) -> None:
    signature = Signature(takes_many, False)
    args, kwargs = (1, order, cart), {"last": Line("a")}
    if by_name:
        args, kwargs = (), {"first": 1, "value": order, "last": Line("a")}
    assert signature.decode(*signature.encode(args, kwargs, limit=None)) == (list(args), kwargs)


def test_pydantic_is_not_imported() -> None:
    program = (
        "import sys, pgqueue_django.payload as p\n"
        "def f(a: int): pass\n"
        "p.Signature(f, False).encode((1,), {}, limit=None)\n"
        "try: p.dump(object(), where='r', limit=None)\n"
        "except p.InvalidPayload: pass\n"
        "assert 'pydantic' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_plain_functions_cost_no_conversion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Signature, "_convert", lambda *args, **kwargs: pytest.fail("converted"))
    monkeypatch.setattr(payload, "_plain", lambda *args: pytest.fail("walked"))
    signature = Signature(optional, False)
    signature.encode((1,), {"c": 3}, limit=None)
    monkeypatch.setattr(signature, "_signature", None)
    texts = signature.encode((1,), {"c": {"a": Word.PAID}}, limit=None)
    assert signature.decode(*texts) == ([1], {"c": {"a": "paid"}})
