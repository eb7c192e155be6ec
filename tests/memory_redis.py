"""A Redis in memory, with the few commands and scripts that the view uses, for tests with their own time.

The scripts are written again in Python here; that they do what those in `lua/` do is tested on a real Valkey.
A test gives each process a client of its own, and decides what becomes of every call.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from io import BytesIO
from typing import Any

import redis

from services.shared.view import generation as generation_module
from services.shared.view import words as words_module

Weather = Callable[[str, Callable[[], Any]], Any]
"""Carries out one call, given what it is and what it does, or fails before or after it."""


class MemoryServer:
    """The data of one server. `name` stands for its `run_id`."""

    def __init__(self, name: str, now: Callable[[], float]) -> None:
        self.name = name
        self.now = now
        self.data: dict[str, Any] = {}

    def snapshot(self) -> dict[str, Any]:
        return deepcopy(self.data)

    def client(self, weather: Weather = lambda _, call: call(), **options: Any) -> "MemoryClient":
        return MemoryClient(lambda: self, weather, **options)

    # Commands

    def eval(self, script: str, number_of_keys: int) -> int:
        assert (script, number_of_keys) == ("return 0", 0)
        return 0

    def info(self, *_: str) -> dict[str, Any]:
        return {"run_id": self.name, "master_replid": self.name, "evicted_keys": 0}

    def time(self) -> tuple[int, int]:
        return int(self.now()), int(self.now() % 1 * 1e6)

    def get(self, key: str) -> str | None:
        return self.data.get(key)

    def set(self, key: str, value: Any, *, nx: bool = False, ex: int | None = None) -> None:
        """Set a value. Nothing expires here."""
        if not (nx and key in self.data):
            self.data[key] = str(value)

    def exists(self, key: str) -> int:
        return int(key in self.data)

    def hget(self, key: str, field: str) -> str | None:
        return self.hgetall(key).get(field)

    def hset(self, key: str, field: str = "", value: Any = None, *, mapping: Any = None) -> None:
        for name, one in (mapping or {field: value}).items():
            self.data.setdefault(key, {})[name] = str(one)

    def hgetall(self, key: str) -> dict[str, str]:
        return dict(self.data.get(key, {}))

    def hkeys(self, key: str) -> list[str]:
        return list(self.data.get(key, {}))

    def hmget(self, key: str, fields: Sequence[str]) -> list[str | None]:
        return [self.hgetall(key).get(field) for field in fields]

    def hdel(self, key: str, *fields: str) -> None:
        for field in fields:
            self.data.get(key, {}).pop(field, None)

    def hincrby(self, key: str, field: str, more: int) -> int:
        self.hset(key, field, int(self.hget(key, field) or 0) + more)
        return int(self.data[key][field])

    def zadd(self, key: str, scores: dict[str, float]) -> None:
        self.data.setdefault(key, {}).update({one: float(score) for one, score in scores.items()})

    def zrange(self, key: str, start: int, stop: int, withscores: bool = False) -> list[tuple[str, float]]:
        found = sorted(self.data.get(key, {}).items(), key=lambda one: (one[1], one[0]))
        return found[start : stop + 1]

    def zrangebylex(self, key: str, low: str, high: str, start: int, count: int) -> list[str]:
        after = low.removeprefix("(") if low != "-" else ""
        return [one for one in sorted(self.data.get(key, {})) if one > after][start : start + count]

    def zrangebyscore(self, key: str, low: str | float, high: str, withscores: bool = False) -> list[Any]:
        assert high == "+inf"
        text = str(low)
        least = float(text.removeprefix("("))
        found = [
            (one, score)
            for one, score in self.zrange(key, 0, 10**6)
            if score > least or (score == least and not text.startswith("("))
        ]
        return found if withscores else [one for one, _ in found]

    def zrem(self, key: str, *members: str) -> None:
        self.hdel(key, *members)

    def zremrangebyscore(self, key: str, low: str, high: float) -> None:
        assert low == "-inf"
        self.hdel(key, *[one for one, score in self.data.get(key, {}).items() if score <= high])

    def xadd(self, key: str, told: Mapping[str, Any] | None = None, /, **fields: Any) -> str:
        entries = self.data.setdefault(key, [])
        entries.append({name: str(value) for name, value in {**(told or {}), **fields}.items()})
        return f"{len(entries)}-0"


class MemoryClient:
    """What one process has of a server, which may be another one from one call to the next."""

    def __init__(
        self,
        server: Callable[[], MemoryServer],
        weather: Weather,
        *,
        connect_hook: Callable[[Any], None] | None = None,
    ) -> None:
        self._server = server
        self._weather = weather
        self._hook = connect_hook
        self._connected: str | None = None

    def run(self, what: str, do: Callable[[MemoryServer], Any]) -> Any:
        def call() -> Any:
            server = self._server()
            if self._hook and self._connected != server.name:
                self._hook(_Connection(server))
                self._connected = server.name
            return do(server)

        return self._weather(what, call)

    def info(self, *sections: str) -> Any:
        return self.run("INFO", lambda server: server.info(*sections))

    def get(self, key: str) -> Any:
        return self.run(f"GET {key}", lambda server: server.get(key))

    def pipeline(self, *, transaction: bool) -> "_Pipeline":
        assert transaction, "nothing here carries out commands while others come in between"
        return _Pipeline(self)

    def register_script(self, text: str) -> Callable[..., Any]:
        if text == words_module._TRY_COMMANDS:  # it changes nothing
            return lambda keys, args, client: client.eval("return 0", 0)
        [name] = [
            path.stem for path in generation_module._LUA.glob("[a-z]*.lua") if text.endswith(path.read_text())
        ]

        def script(keys: list[str], args: list[Any]) -> Any:
            arguments = [one.decode() if isinstance(one, bytes) else str(one) for one in args]
            return self.run(name, lambda server: _run(server, name, keys, arguments))

        return script

    def lock(self, name: str, **_: Any) -> "MemoryLock":
        return MemoryLock(self, name)

    def close(self) -> None:
        pass


class MemoryLock:
    """A lock that never runs out. Nobody waits for it: whoever comes second is refused."""

    def __init__(self, client: MemoryClient, name: str) -> None:
        self._client = client
        self._name = name

    def acquire(self) -> bool:
        def take(server: MemoryServer) -> bool:
            free = not server.exists(self._name)
            server.set(self._name, "held", nx=True)
            return free

        return bool(self._client.run(f"LOCK {self._name}", take))

    def reacquire(self) -> None:
        self._client.run(f"RENEW {self._name}", lambda _: None)

    def release(self) -> None:
        self._client.run(f"UNLOCK {self._name}", lambda server: server.data.pop(self._name, None))


class _Connection:
    """A new connection, as far as the hook uses it."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server

    def on_connect(self) -> None:
        pass

    def disconnect(self) -> None:
        pass

    def send_command(self, *command: str) -> None:
        pass

    def read_response(self) -> Any:
        return self._server.info()


class _Pipeline:
    """Commands that are carried out at one moment."""

    def __init__(self, client: MemoryClient) -> None:
        self._client = client
        self._commands: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, command: str) -> Callable[..., None]:
        return lambda *args, **options: self._commands.append((command, args, options))

    def execute(self) -> list[Any]:
        what = "+".join(command for command, _, _ in self._commands)
        return self._client.run(
            what,
            lambda server: [
                getattr(server, name)(*args, **options) for name, args, options in self._commands
            ],
        )


# Scripts


def _run(server: MemoryServer, name: str, keys: list[str], args: list[str]) -> Any:
    if name != "begin" and server.get(keys[0]) != args[0]:
        raise redis.ResponseError("OVER")
    return SCRIPTS[name](server, keys, args)


def _milliseconds(server: MemoryServer) -> int:
    return int(server.now() * 1000)


def _begin(server: MemoryServer, keys: list[str], args: list[str]) -> int:
    if (server.get(keys[0]) or "") != args[0]:
        return 0
    if server.exists(keys[2]):
        server.set(keys[1], args[2])
    server.set(keys[0], args[1])
    return 1


def _apply(server: MemoryServer, keys: list[str], args: list[str]) -> list[Any]:
    documents, answers, admitted = BytesIO(args[2].encode()), [], list[str]()
    for copy, new in zip(keys[7:], json.loads(args[1]), strict=True):
        new["counts"] = dict(zip(args[4:], new["counts"], strict=True))
        answers.append(_apply_one(server, keys, copy, new, documents.read(new["size"]).decode()))
        if answers[-1] == "applied" and new["admitted"]:
            admitted.append(new["speaker"])
    if admitted:
        server.xadd(keys[3], speakers=json.dumps(admitted), **_fields(json.loads(args[3])))
    return answers


def _apply_one(
    server: MemoryServer, keys: list[str], copy: str, new: dict[str, Any], document: str
) -> str | list[str]:
    _, names, counts, events, taken, digests, pinned, *_ = keys
    stored = server.hgetall(copy)
    revision = int(stored.get("rev", 0))
    if revision >= new["rev"]:
        return "kept"
    if revision != new["base"]:
        return [stored.get("doc", "")]
    for field in ("rev", "etag", "key"):
        server.hset(copy, field, new[field])
    server.hset(copy, "doc", document)
    for counted, count in new["counts"].items():
        server.hset(copy, counted, count)
        server.hincrby(counts, counted, count - int(stored.get(counted, 0)))
    if stored.get("key") and stored["key"] != new["key"]:
        server.hdel(names, stored["key"])
    if stored.get("key") and not new["pinned"]:
        server.zrem(pinned, stored["key"])
    if new["key"]:
        server.zadd(names, {new["key"]: 0})
    if new["pinned"]:
        server.zadd(pinned, {new["key"]: 0})
    for digest in new["went"]:
        if server.hget(digests, digest) == new["speaker"]:
            server.hdel(digests, digest)
    for digest in new["came"]:
        server.hset(digests, digest, new["speaker"])
    last = ""
    for event in new["events"]:
        fields = _fields(event)
        last = server.xadd(events, speaker=new["speaker"], revision=new["rev"], life=new["life"], **fields)
    if new["takes"]:
        server.set(taken, last)
    return "applied"


def _fields(event: list[str]) -> dict[str, str]:
    return dict(zip(event[::2], event[1::2], strict=True))


def _reserve(server: MemoryServer, keys: list[str], args: list[str]) -> list[Any]:
    now = server.now() * 1e6
    server.zremrangebyscore(keys[1], "-inf", now - int(args[3]) * 1000 - 1)
    reserved = {one.split()[0] for one, _ in server.zrange(keys[1], 0, 10**6)}
    others = [one for one in reserved - {args[1]} if not server.hget(keys[3] + one, "key")]
    server.zadd(keys[1], {f"{args[1]} {args[2]}": now})
    return [len(others), *server.hmget(keys[2], args[4:])]


def _announce(server: MemoryServer, keys: list[str], args: list[str]) -> None:
    server.hset(keys[1], args[1], _milliseconds(server))


def _check_within(server: MemoryServer, keys: list[str], args: list[str]) -> None:
    now = _milliseconds(server)
    for speaker, within in zip(args[1::2], args[2::2], strict=True):
        at = now + int(within)
        due = server.data.get(keys[1], {}).get(speaker, at)
        server.zadd(keys[1], {speaker: due + 1 if due <= now else min(at, due)})


def _put_off(server: MemoryServer, keys: list[str], args: list[str]) -> None:
    due = server.data.get(keys[1], {}).get(args[1])
    if due is None or due != float(args[2]):
        return
    server.hdel(keys[1], args[1])
    if args[3]:
        server.zadd(keys[1], {args[1]: _milliseconds(server) + int(args[3])})


def _move_job(server: MemoryServer, jobs: str, record: str, job: str, state: str, *, ended: bool) -> None:
    before, created_at, profile = server.hmget(record, ["state", "created_at", "profile"])
    server.hset(record, "state", state)
    if ended:
        server.hset(record, "finished_at", server.now())
    server.zrem(f"{jobs}:{before}", job)
    server.zrem(f"{jobs}:{before}:{profile}", job)
    server.zadd(f"{jobs}:{state}", {job: float(created_at or 0)})
    server.zadd(f"{jobs}:{state}:{profile}", {job: server.now() if ended else float(created_at or 0)})


def _claim(server: MemoryServer, keys: list[str], args: list[str]) -> str:
    _, open_jobs, records, jobs, events = keys
    now, field, job = _milliseconds(server), args[1], args[2]
    if held := server.hget(open_jobs, field):
        holder, _, deadline, *mends = held.split(":")
        if holder == job or int(deadline) > now:
            if args[6] and not mends:
                server.hset(open_jobs, field, held + args[6])
            return holder
        if server.hget(records + holder, "state") in {"queued", "processing"}:
            server.hset(records + holder, "replaced", "true")
            _move_job(server, jobs, records + holder, holder, "superseded", ended=True)
    server.hset(open_jobs, field, f"{job}:queued:{now + int(args[3])}{args[6]}")
    claimed = dict(zip(args[7::2], args[8::2], strict=True))
    for name, value in {"state": "queued", "created_at": now / 1000, **claimed}.items():
        server.hset(records + job, name, value)
    server.zadd(jobs, {job: now / 1000})
    _move_job(server, jobs, records + job, job, "queued", ended=False)
    told = {"what": "job", "at": now / 1000, "job": job, "state": "queued", "claimed": json.dumps(claimed)}
    server.xadd(events, speaker=args[5], **told)
    return job


def _job(server: MemoryServer, keys: list[str], args: list[str]) -> int | None:
    _, open_jobs, record, jobs, events = keys
    now, field, job, state, held = _milliseconds(server), args[1], args[2], args[3], args[4]
    claim = server.hget(open_jobs, field) or ""
    holder, mends = claim.partition(":")[0], ":mends" if claim.endswith(":mends") else ""
    if not held and holder == job:
        server.hdel(open_jobs, field)
    before = server.hget(record, "state")
    if before not in {"queued", "processing"}:
        return None
    if args[7] and args[7] != (server.hget(record, "attempt") or "0"):
        return None
    state = state or before
    fields = dict(zip(args[8::2], args[9::2], strict=True))
    for name, value in fields.items():
        server.hset(record, name, value)
    attempts = server.hincrby(record, "attempt", int(args[5]))
    if held and holder in {"", job}:
        server.hset(open_jobs, field, f"{job}:{state}:{now + int(held)}{mends}")
    if before != state:
        _move_job(server, jobs, record, job, state, ended=not held)
    if before != state or fields:
        server.xadd(events, speaker=args[6], what="job", at=now / 1000, job=job, state=state)
    return attempts


def _complete(server: MemoryServer, keys: list[str], args: list[str]) -> None:
    server.data.setdefault(keys[1], {}).setdefault("first", str(int(server.now())))
    server.hset(keys[1], "last", int(server.now()))


def _forget(server: MemoryServer, keys: list[str], args: list[str]) -> int:
    return sum(server.data.pop(key, None) is not None for key in keys[1:])


def _share(server: MemoryServer, keys: list[str], args: list[str]) -> int:
    _, copies, told, events, taken = keys
    stored = server.hget(copies, args[1])
    if stored and int(stored.split(" ")[0]) >= int(args[2]):
        return 0
    known = int(stored.split(" ")[0]) if stored else int(args[2]) - 1
    server.hset(copies, args[1], f"{args[2]} {args[3]}")
    highest = max(server.data.get(told, {}).values(), default=0.0)
    number = max(highest, int(server.hget(copies, "number") or 0)) + 1
    server.hset(copies, "number", int(number))
    server.zadd(told, {args[1]: number})
    event = server.xadd(
        events, speaker="", what=args[4], at=server.now(), takes=1, document=args[1], revision=args[2]
    )
    server.set(taken, event)
    for one in json.loads(args[5]):
        if int(one["revision"]) > known:
            server.xadd(events, at=server.now(), **one)
    return 1


def _renew(server: MemoryServer, keys: list[str], args: list[str]) -> str:
    _, leases, taken, _ = keys
    if _place(server.get(taken) or "0-0") > _place(args[2]):
        return "behind"
    server.hset(leases, args[1], args[2])
    return "granted"


def _behind(server: MemoryServer, keys: list[str], args: list[str]) -> list[Any]:
    _, leases, taken = keys
    event = args[1] or server.get(taken) or "0-0"
    late = [one for one, applied in server.hgetall(leases).items() if _place(event) > _place(applied)]
    if args[2] == "1":
        server.hdel(leases, *late)
    return [event, len(late)]


def _place(event: str) -> tuple[int, ...]:
    return tuple(int(part) for part in event.split("-"))


SCRIPTS: dict[str, Callable[[MemoryServer, list[str], list[str]], Any]] = {
    "begin": _begin,
    "apply": _apply,
    "reserve": _reserve,
    "announce": _announce,
    "check_within": _check_within,
    "put_off": _put_off,
    "claim": _claim,
    "job": _job,
    "complete": _complete,
    "forget": _forget,
    "share": _share,
    "renew": _renew,
    "behind": _behind,
}
