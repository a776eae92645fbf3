"""Arguments and results of jobs: strict JSON text and back.

Owns what a payload may hold: None, bool, int, float, str (and their subclasses, by value), lists, tuples (as
lists) and mappings with string keys; and, where a task's parameter is annotated with one, dataclasses and
pydantic models. It never touches the database and never imports pydantic (2.11 or later, if it is there).

Invariant: a text that leaves here is one that PostgreSQL takes and that a worker with the same code reads back
equal: it is stored as it stands (``json``), so keys keep their order and floats every digit. Everything else is
refused with ``InvalidPayload``, which names the path and the remedy, before any SQL. What it refuses is what
``jsonb`` refuses, too: plain SQL may cast.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import inspect
import json
import math
import pathlib
import re
import sys
import traceback
import types
import typing
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property, partial
from itertools import chain, repeat
from typing import Any

from django.db.models import Model, QuerySet
from django.utils.functional import LazyObject, Promise

from .exceptions import InvalidPayload

MAX_DEPTH = 100
"""How many lists and objects may stand inside one another, the list of the arguments itself included."""

_Path = tuple[Any, ...]  # the root's name, then keys and indexes: its length is a container's depth

_SCALARS = frozenset({str, int, float, bool, type(None)})

# Without its own search for cycles: _is_plain has bounded the depth.
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"))
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")  # and not an escaped backslash before "u0000"

_REMEDIES: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (Model, "pass its primary key"),
    (QuerySet, "pass a list of primary keys"),
    (Promise, "pass str(value), which settles its language"),
    (LazyObject, "pass what it stands for, a model instance by its primary key"),
    ((bytes, bytearray, memoryview), "pass text, such as base64.b64encode(value).decode()"),
    ((set, frozenset), "pass a list, such as sorted(value)"),
    ((datetime.date, datetime.time), "pass value.isoformat()"),
    (datetime.timedelta, "pass value.total_seconds()"),
    ((decimal.Decimal, uuid.UUID, pathlib.PurePath), "pass str(value)"),
    (enum.Enum, "pass value.value"),
)


def dump(value: object, *, where: str, limit: int | None) -> str:
    """Return ``value`` as compact JSON of at most ``limit`` bytes of UTF-8 (None: of any size).

    ``where`` is the root's name in messages (``result['lines'][3] is …``). Raises ``InvalidPayload``.
    """
    text, size = _write(value, (where,))
    _check_size(where, size, limit)
    return text


def untyped(args: Sequence[Any], kwargs: Mapping[str, Any], *, limit: int | None) -> tuple[str, str]:
    """Return the arguments of a task whose code is elsewhere as two JSON texts, together within ``limit`` bytes.

    Raises ``InvalidPayload``.
    """
    args_json, args_size = _write(args, ("args",)) if args else ("[]", 2)
    kwargs_json, kwargs_size = _write(kwargs, ("kwargs",)) if kwargs else ("{}", 2)
    _check_size("args and kwargs", args_size + kwargs_size, limit)
    return args_json, kwargs_json


def load(args_json: str, kwargs_json: str) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments as they stand in the row. Raises ``InvalidPayload`` for anything but list and object."""
    return _read(args_json, list, "args"), _read(kwargs_json, dict, "kwargs")


def storable_text(text: str, limit: int | None = None) -> str:
    """Return ``text`` as PostgreSQL can store it, at most ``limit`` characters of it. Never raises.

    A NUL becomes ``\\x00``, a lone surrogate ``\\udc80``. A longer text loses its middle: a traceback says where
    at its beginning and what at its end.
    """
    text = str.replace(text, "\0", "\\x00").encode("utf-8", "backslashreplace").decode()
    if limit is None or len(text) <= limit:
        return text
    note = "\n[… {:,} characters left out …]\n"
    room = limit - len(note.format(len(text)))  # the final number is smaller, so never longer
    if room < limit // 2:
        return text[: max(limit, 0)]
    tail = room // 2
    return text[: room - tail] + note.format(len(text) - room) + text[len(text) - tail :]


class Signature:
    """What a task's function takes. Built once per task; converts annotated parameters both ways.

    A parameter (of ``*args`` and ``**kwargs``: each element) is converted if its annotation is a dataclass or a
    pydantic model ``X``, or ``X | None``, or ``list[X]``; its argument may be an ``X`` or a dict that makes one.
    All fields are written, with the values that their defaults had at enqueue. ``encode`` reads back what it
    wrote, so validators and ``__post_init__`` run there too. Other parameters are plain JSON, whatever their
    annotation; so are those whose annotation names something that cannot be found at the first call.
    """

    def __init__(self, func: Callable[..., Any], skip_context: bool, *, plain: bool = False) -> None:
        """``skip_context``: the worker passes the first parameter. Raises ``TypeError`` if there is none.

        ``plain``: nothing is converted, whatever the annotations.
        """
        self._is_plain = plain
        self.name: str = getattr(func, "__qualname__", repr(func))
        self._func = func
        signature = _signature(func)
        parameters = list(signature.parameters.values())
        if skip_context:
            if not parameters or parameters[0].kind in (parameters[0].KEYWORD_ONLY, parameters[0].VAR_KEYWORD):
                raise TypeError(f"{self.name}() has no first positional parameter to take the context")
            if parameters[0].kind is not parameters[0].VAR_POSITIONAL:
                del parameters[0]
        self._signature = signature.replace(parameters=parameters)
        # For n positional arguments: the keywords that must follow, that may, and that would be given twice.
        # (Signature.bind takes 2 us, this 0.5, reading a small payload 2; and that of Python 3.13.0 lets some
        # positional-only parameters pass as keywords.)
        kinds = {p.kind for p in parameters}
        self._takes_rest = inspect.Parameter.VAR_POSITIONAL in kinds
        self._takes_extra = inspect.Parameter.VAR_KEYWORD in kinds
        # Each with the keyword that gives it; None, which is no keyword, makes a required one unsatisfiable.
        keyed = [(p, None if p.kind is p.POSITIONAL_ONLY else p.name) for p in parameters]
        by_position = [(p, key) for p, key in keyed if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        by_keyword = [(p, key) for p, key in keyed if p.kind is p.KEYWORD_ONLY]
        self._positions = len(by_position)
        self._required, self._allowed, self._taken = [], [], []
        for n in range(self._positions + 1):
            following = [*by_position[n:], *by_keyword]
            self._required.append(frozenset(key for p, key in following if p.default is p.empty))
            self._allowed.append(frozenset(key for _, key in following))
            self._taken.append(frozenset(key for _, key in by_position[:n]))

    def __str__(self) -> str:
        """As it stands in the code; of annotations that are kept as texts, without their quotes."""
        bare = [p.replace(annotation=_Bare(p.annotation)) for p in self._signature.parameters.values()]
        result = self._signature.return_annotation
        return str(inspect.Signature(bare, return_annotation=_Bare(result)))

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise ``TypeError`` if calling the function with these arguments would."""
        count, names = min(len(args), self._positions), kwargs.keys()
        if (
            (self._takes_rest or count == len(args))
            and self._required[count] <= names
            and (names <= self._allowed[count] or (self._takes_extra and names.isdisjoint(self._taken[count])))
        ):
            return
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as exc:
            raise TypeError(f"{self.name}(): {exc}") from None
        raise TypeError(f"{self.name}(): a positional-only argument was passed as a keyword")

    def encode(self, args: Sequence[Any], kwargs: Mapping[str, Any], *, limit: int | None) -> tuple[str, str]:
        """Return the arguments as two JSON texts, together within ``limit`` bytes; defaults are not written.

        Raises ``TypeError`` for a wrong call, ``InvalidPayload`` for a value that cannot be stored.
        """
        self.bind(args, kwargs)
        if not self._codecs:
            return untyped(args, kwargs, limit=limit)
        texts = untyped(*self._convert(args, kwargs, back=False), limit=limit)
        self.decode(*texts)  # what the worker would refuse is refused now
        return texts

    def decode(self, args_json: str, kwargs_json: str) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments to call the function with.

        Raises ``InvalidPayload`` if they do not fit it any more: the code has changed since they were written.
        """
        args, kwargs = load(args_json, kwargs_json)
        try:
            self.bind(args, kwargs)
        except TypeError as exc:
            raise InvalidPayload(f"the arguments of this job do not fit its task any more: {exc}") from exc
        return self._convert(args, kwargs, back=True) if self._codecs else (args, kwargs)

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Where the positional arguments of a call stand, by the names of their parameters."""
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        names = [p.name for p in self._signature.parameters.values() if p.kind in kinds]
        return {name: place for place, name in enumerate(names)}

    def by_name(self, args: Sequence[Any], kwargs: Mapping[str, Any], *, defaults: bool) -> dict[str, Any]:
        """A call's arguments, stored or not, as they are stored, by the names of their parameters.

        With ``defaults``, of those that are not given as well. Raises ``TypeError`` for what no call has.
        """
        if self._codecs:
            args, kwargs = self._convert(args, kwargs, back=False)
        args, kwargs = load(*untyped(args, kwargs, limit=None))
        bound = self._signature.bind_partial(*args, **kwargs)
        if defaults:
            bound.apply_defaults()
        found: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            if self._signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
                found |= value
            else:
                found[name] = value
        return found

    @cached_property
    def _codecs(self) -> tuple[list[_Codec], dict[str, _Codec], _Codec, _Codec] | None:
        """By position and by name, then of ``*args`` and ``**kwargs``. None: all parameters are plain JSON."""
        if self._is_plain:
            return None
        namespace = getattr(inspect.unwrap(self._func), "__globals__", {})
        positional: list[_Codec] = []
        named: dict[str, _Codec] = {}
        rest: _Codec = _as_json
        extra: _Codec = _as_json
        for p in self._signature.parameters.values():
            codec = _codec(_resolve(p.annotation, namespace), field=False)
            if p.kind is p.VAR_POSITIONAL:
                rest = codec
            elif p.kind is p.VAR_KEYWORD:
                extra = codec
            else:
                if p.kind is not p.KEYWORD_ONLY:
                    positional.append(codec)
                if p.kind is not p.POSITIONAL_ONLY:
                    named[p.name] = codec
        plain = {_as_json, *positional, *named.values(), rest, extra} == {_as_json}
        return None if plain else (positional, named, rest, extra)

    def _convert(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], *, back: bool
    ) -> tuple[list[Any], dict[str, Any]]:
        # BoundArguments would make positional arguments of keywords.
        assert self._codecs  # noqa: S101 - both callers have looked
        positional, named, rest, extra = self._codecs
        by_position = zip(args, chain(positional, repeat(rest)), strict=False)
        return (
            [codec(value, ("args", index), back) for index, (value, codec) in enumerate(by_position)],
            {name: named.get(name, extra)(value, ("kwargs", name), back) for name, value in kwargs.items()},
        )


class _Bare(str):
    """An annotation that is written without quotes."""

    def __new__(cls, annotation: Any) -> Any:
        return super().__new__(cls, annotation) if isinstance(annotation, str) else annotation

    __repr__ = str.__str__


def _signature(func: Callable[..., Any]) -> inspect.Signature:
    if sys.version_info >= (3, 14):
        # Annotations are evaluated when asked for there, and may name what is defined later or never.
        from annotationlib import Format

        return inspect.signature(func, annotation_format=Format.FORWARDREF)
    return inspect.signature(func)


def _resolve(annotation: Any, namespace: dict[str, Any]) -> Any:
    # One at a time: a name imported only for type checkers does not take the other parameters with it.
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        return typing.get_type_hints(holder, globalns=namespace)["it"]
    except Exception:
        return None


# Values to text and back -------------------------------------------------------------------------------------


def _write(value: object, path: _Path) -> tuple[str, int]:
    """Return the text and its size in bytes."""
    try:
        return _write_plain(value)
    except (TypeError, ValueError):
        pass  # only unusual (a Mapping), or to be refused by the walk, which knows the path
    return _write_plain(_plain(value, path))


def _write_plain(value: object) -> tuple[str, int]:
    # The encoder alone would write the key 1 as "1". (The look is a third of the time for a 2 KiB order;
    # reading the text back and comparing would be half.)
    if not _is_plain(value, MAX_DEPTH):
        raise ValueError
    text = _ENCODER.encode(value)
    if "\\u0000" in text and _NUL.search(text):
        raise ValueError
    return text, len(text) if text.isascii() else len(text.encode())  # which refuses surrogates


def _is_plain(value: Any, depth: int) -> bool:
    """Whether the encoder writes ``value`` as it is. Raises ``TypeError`` for keys that are no strings."""
    kind = type(value)
    if kind is dict:
        "".join(value)
        value = value.values()
    elif kind is not list and kind is not tuple:
        return kind in _SCALARS or issubclass(kind, str | int | float)
    if not depth:
        return False
    for item in value:  # noqa: SIM110 - all() takes half as long again
        if type(item) not in _SCALARS and not _is_plain(item, depth - 1):
            return False
    return True


def _plain(value: Any, path: _Path) -> Any:
    """Return ``value`` in JSON's own types, or raise ``InvalidPayload`` for the first part that has none."""
    # The type is asked, not the value: isinstance() lets a lazy object run its query.
    kind = type(value)
    if value is None or kind is bool:
        return value
    if issubclass(kind, str):
        return _plain_text(value, path, "holds")
    if issubclass(kind, int):
        number = int.__index__(value)
        try:
            int.__repr__(number)
        except ValueError as exc:
            raise _invalid(path, "is an int of more digits than Python reads back: pass hex(value)") from exc
        return number
    if issubclass(kind, float):
        if not math.isfinite(value):
            raise _invalid(path, "is NaN or infinite, and JSON has no such number: pass None or a string")
        return float.__float__(value)
    if issubclass(kind, Mapping):
        _check_depth(path)
        result: dict[str, Any] = {}
        for key, item in value.items():
            if not issubclass(type(key), str):
                raise _invalid(path, f"has a key of type {type(key).__name__}: use string keys, as JSON does")
            name = _plain_text(key, path, "has a key with")
            if name in result:
                raise _invalid((*path, name), "is there twice: keep one")
            result[name] = _plain(item, (*path, name))
        return result
    if issubclass(kind, list | tuple):
        _check_depth(path)
        return [_plain(item, (*path, index)) for index, item in enumerate(value)]
    raise _invalid(path, f"is of type {kind.__name__}, which JSON cannot hold: {_remedy(kind)}")


def _plain_text(value: str, path: _Path, holds: str) -> str:
    text = str.__str__(value)
    if "\0" in text:
        raise _invalid(path, f'{holds} a NUL, which PostgreSQL cannot store: text.replace("\\0", "")')
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        raise _invalid(path, f'{holds} a lone surrogate: decode its bytes with errors="replace"') from exc
    return text


def _remedy(kind: type) -> str:
    for classes, remedy in _REMEDIES:
        if issubclass(kind, classes):
            return remedy
    if _model(kind):
        name = kind.__name__
        return f"annotate the task's parameter with {name}, {name} | None or list[{name}], or pass a dict"
    return "pass strings, numbers, booleans, None, lists and dicts"


def _read(text: str, kind: type, where: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as exc:  # an int of too many digits is a ValueError too
        raise _invalid((where,), f"cannot be read: {_reason(exc)}") from exc
    if type(value) is not kind:
        raise _invalid((where,), f"must be a {kind.__name__}, not {type(value).__name__}")
    return value


def _check_depth(path: _Path) -> None:
    if len(path) > MAX_DEPTH:
        raise _invalid(path[:4], f"goes deeper than {MAX_DEPTH} levels, or holds itself: flatten it")


def _check_size(where: str, size: int, limit: int | None) -> None:
    if limit is not None and size > limit:
        raise InvalidPayload(
            f'{where}: {size:,} bytes of JSON, and PGQUEUE["MAX_PAYLOAD_BYTES"] allows {limit:,}: '
            "store the data, and pass its key or path"
        )


def _invalid(path: _Path, problem: str) -> InvalidPayload:
    # repr() keeps NUL and surrogates out of a message that may be stored itself.
    steps = (repr(step[:60] if isinstance(step, str) else step) for step in path[1:])
    return InvalidPayload(f"{path[0]}{''.join(f'[{step}]' for step in steps)} {problem}", path=path)


def _reason(exc: Exception) -> str:
    return "".join(traceback.format_exception_only(exc)).strip()  # survives a __str__ that raises


# Annotated values --------------------------------------------------------------------------------------------

# codec(value, path, back): from an argument to what JSON can hold, or back. Raises InvalidPayload.
_Codec = Callable[[Any, _Path, bool], Any]


def _codec(annotation: Any, *, field: bool) -> _Codec:
    """Return the codec of a parameter or of a dataclass's ``field``: of the latter, plain classes are checked."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType) and len(inner) == 2 and type(None) in inner:
        item = _codec(inner[inner[0] is type(None)], field=field)
        return item if item is _as_json else partial(_optional, item)
    if origin is list and (item := _codec(inner[0], field=field)) is not _as_json:
        return partial(_list, item)
    cls = origin or annotation
    if not isinstance(cls, type) or cls is Any:
        return _as_json
    return _model(cls) or (partial(_checked, dict if typing.is_typeddict(cls) else cls) if field else _as_json)


@cache
def _model(cls: type) -> _Codec | None:
    pydantic = sys.modules.get("pydantic")  # whoever has a model has imported it
    if pydantic and issubclass(cls, pydantic.BaseModel):
        return partial(_pydantic, cls)
    return _Dataclass(cls) if dataclasses.is_dataclass(cls) else None


def _as_json(value: Any, path: _Path, back: bool) -> Any:
    return value


def _optional(item: _Codec, value: Any, path: _Path, back: bool) -> Any:
    return None if value is None else item(value, path, back)


def _list(item: _Codec, value: Any, path: _Path, back: bool) -> Any:
    _check_depth(path)
    if not isinstance(value, list | tuple):
        raise _invalid(path, f"must be a list, not {type(value).__name__}")
    return [item(element, (*path, index), back) for index, element in enumerate(value)]


def _checked(cls: type, value: Any, path: _Path, back: bool) -> Any:
    if not back:
        return value.value if issubclass(cls, enum.Enum) and type(value) is cls else value
    try:
        if issubclass(cls, enum.Enum) or (cls is float and type(value) is int):
            return cls(value)
    except (ValueError, OverflowError) as exc:
        raise _invalid(path, f"is no {cls.__name__}") from exc
    if not isinstance(value, cls) or (cls is int and type(value) is bool):
        problem = f"must be {cls.__name__}, not {type(value).__name__}"
        if cls not in _SCALARS | {list, dict}:
            problem += f" (JSON has no {cls.__name__}: declare the field as text, or use a pydantic model)"
        raise _invalid(path, problem)
    return value


class _Dataclass:
    def __init__(self, cls: type) -> None:
        self.cls = cls

    @cached_property
    def fields(self) -> dict[str, _Codec]:
        """Resolved late, since a dataclass may hold itself."""
        fields = [field for field in dataclasses.fields(self.cls) if field.init]
        try:
            hints = typing.get_type_hints(self.cls)
        except Exception:
            namespace = vars(sys.modules[self.cls.__module__])
            hints = {field.name: _resolve(field.type, namespace) for field in fields}
        return {field.name: _codec(hints[field.name], field=True) for field in fields}

    def __call__(self, value: Any, path: _Path, back: bool) -> Any:
        _check_depth(path)
        name = self.cls.__name__
        if not back:
            if issubclass(type(value), Mapping):
                return self._each({**self._defaults(value), **value}, path, False)
            _check_class(self.cls, value, path)
            return self._each({field: getattr(value, field) for field in self.fields}, path, False)
        if type(value) is not dict:
            raise _invalid(path, f"must hold the fields of {name}, not be a {type(value).__name__}")
        values = self._each(value, path, True)
        try:
            return self.cls(**values)
        except (TypeError, ValueError) as exc:  # a field is missing, or __post_init__ refuses
            raise _invalid(path, f"is no valid {name}: {_reason(exc)}") from exc

    def _defaults(self, given: Mapping[Any, Any]) -> dict[str, Any]:
        defaults = {}
        for field in dataclasses.fields(self.cls):
            if field.init and field.name not in given:
                if field.default is not dataclasses.MISSING:
                    defaults[field.name] = field.default
                elif field.default_factory is not dataclasses.MISSING:
                    defaults[field.name] = field.default_factory()
        return defaults

    def _each(self, values: Mapping[Any, Any], path: _Path, back: bool) -> dict[str, Any]:
        for key in values:
            if key not in self.fields:
                place = (*path, key) if type(key) is str else path
                raise _invalid(place, f"is no field of {self.cls.__name__}, which has {', '.join(self.fields)}")
        return {key: self.fields[key](item, (*path, key), back) for key, item in values.items()}


def _pydantic(cls: Any, value: Any, path: _Path, back: bool) -> Any:
    try:
        if back:
            # From text, since a strict model takes a date from JSON only.
            return cls.model_validate_json(_ENCODER.encode(value), by_alias=True, by_name=True)
        if type(value) is not cls:
            value = cls.model_validate(value, by_alias=True, by_name=True)
        # By name: the alias for writing need not be one for reading. Without computed fields.
        raw = value.model_dump(mode="json", by_alias=False, round_trip=True, warnings=False)
    except (TypeError, ValueError) as exc:
        reason = _reason(exc)
        if errors := getattr(exc, "errors", None):  # pydantic's own: one for each place
            first, *more = errors(include_url=False)
            path = (*path, *first["loc"])
            reason = first["msg"] + (f" (and {len(more)} more)" if more else "")
        raise _invalid(path, f"does not fit {cls.__name__}: {reason}") from exc
    _check_class(cls, value, path)
    # Some types are written so that they cannot be read back: a SecretStr as asterisks.
    _write(raw, path)
    again = _pydantic(cls, raw, path, True)
    if again.model_dump(round_trip=True) != value.model_dump(round_trip=True):
        raise _invalid(path, f"is a {cls.__name__} with a field that JSON changes, such as a secret: pass its key")
    return raw


def _check_class(cls: type, value: Any, path: _Path) -> None:
    # A subclass would come back without what it adds.
    if type(value) is not cls:
        raise _invalid(path, f"must be exactly {cls.__name__} or a dict of its fields, not {type(value).__name__}")
