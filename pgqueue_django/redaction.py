"""What may be said to everybody of an error, of a task and of a worker.

Nobody can list all that a message may give away: names, addresses, paths, amounts, half a row of a table. So nothing of
a message goes out but words that are listed here, as they stand here; of a type or a task its own name, without its
modules; of a worker a label that nobody can calculate back. No number, no quotation, no word of the project's own.
"""

from __future__ import annotations

import re

from django.utils.crypto import salted_hmac

MAX_CHARACTERS = 200
MAX_NAME = 80
LEFT_OUT = "…"

# What goes wrong, in the words of Python, of libraries and of servers; a line without one of them says nothing.
_TELLING = """
    abort aborted aborting abruptly absent accepted access acknowledged acquire acquired allocate allocation allowed
    already ambiguous argument arguments arithmetic assertion attribute authenticate authenticated authentication
    authorization authorized available backend bad base broken buffer busy cache callable cancel canceled cancelled
    cancelling cannot certificate character characters charge charged check checksum circular class client close
    closed closing code codec column command commit complete completed concurrent configuration configured conflict
    connect connected connecting connection constraint convert corrupt corrupted could couldn't crash crashed
    credentials currently cursor cycle data database deadline deadlock decline declined decode decoding default
    delete deleted denied detected dictionary digit directory disabled disconnected disk divide division document
    does duplicate during element empty enabled encode encoding end ended error errors exceed exceeded exception
    exhausted exist exists exit exited expected expire expired expires fail failed failing fails failure fatal field
    file float forbidden foreign format found frozen full function gateway gone handler handshake header heartbeat
    host idle illegal import improperly incompatible incomplete inconsistent incorrect index input instance
    insufficient integer integrity internal interrupted invalid iterable iteration key keys keyword kill killed
    large lease length limit limited list load lock locked long lookup lost malformed match matching maximum memory
    message method minimum mismatch missing module moved multiple negative network none nonexistent null number
    object offline open operation option out overflow overloaded packet page parameter parse parsing password
    payment peer pending permanently permission permitted pipe pool port positional precision prematurely process
    program progress protocol provider queue quota raised range rate reachable read reading ready receive received
    recursion refuse refused reject rejected relation remote replica replication request requests require required
    reset resource response retries retry returned rollback rolled row rows running schema sequence serialization
    serialize server service session shutdown signal size slot socket space stale started starting state statement
    status stop stopped storage stream string subscriptable supported syntax system table task temporarily temporary
    terminated terminating thread throttled time timed timeout token tokens transaction truncated try tuple type
    unable unauthorized unavailable unbound undefined unexpected unexpectedly unhashable unique unknown unpack
    unreachable unreadable unrecognized unserializable unsupported update upstream usable user valid validation
    value values version violates violation wait waited waiting worker write writing wrong zero
"""
_JOINING = """
    a after again an and any are as at be because been before being between but by can did do down first for from
    had has have if in into is it its last later less longer many may might more most must new no not now of off on
    one only or other over same should than that the then there this to too under until up was were when which while
    will with within without would yet
"""
TELLING, WORDS = frozenset(_TELLING.split()), frozenset(f"{_TELLING} {_JOINING}".split())
# What stands in quotation marks is somebody's, whatever the words.
_QUOTED = re.compile(
    r"""["`\u00ab\u201c\u201e][^\n]*?(?:["`\u00bb\u201d\u201c]|$)"""
    r"""|(?<!\w)'[^\n]*?(?:'(?!\w)|$)|\u2018[^\n]*?(?:\u2019|$)"""
)


def line(message: str) -> str:
    """The last line of an error's message, in listed words alone; empty where they say nothing."""
    last = next((one for one in reversed(message.splitlines()) if one.strip()), "")
    said: list[str] = []
    is_telling = False
    for token in _QUOTED.sub(f" {LEFT_OUT} ", last[:10_000]).split():
        word = token.strip(".,:;!?()[]").lower()
        if word in WORDS:
            is_telling = is_telling or word in TELLING
            said.append(word)
        elif said[-1:] != [LEFT_OUT]:
            said.append(LEFT_OUT)
    text = " ".join(said)
    if len(text) > MAX_CHARACTERS:
        text = f"{text[: MAX_CHARACTERS - 2].rpartition(' ')[0]} {LEFT_OUT}"
    return text if is_telling else ""


def name(path: str | None) -> str:
    """Of ``shop.tasks.charge``, or of the type of an error, what stands last; empty where that is no name."""
    last = (path or "").rpartition(".")[2]
    return last if last.isascii() and last.isidentifier() and len(last) <= MAX_NAME else ""


def worker(id: str) -> str:
    """The same for the same worker, and for nobody who does not have the project's SECRET_KEY its id."""
    return f"w-{salted_hmac('pgqueue_django.redaction', id, algorithm='sha256').hexdigest()[:8]}"
