"""A store of threads whose content only the holder of a key can read. An extra: `agentgraph-engine[encryption]`.

What is sealed: an entry's data, its head and its key, each by AES-256-GCM under a key of the thread's own, made from
the caller's. Each is bound to the thread's name, its entry's number, line, kind and fullness, and to which of the three
it is: changed, cut or moved elsewhere it is not opened. What is not: names of threads and graphs, kinds and numbers of
entries, sizes and times; the store needs them. Nor can it be told from an entry that the store has lost it, or has put
an older text of the same entry in its place.

A sealed part: `_SEAL`, the first bytes of a digest of the key it was sealed with, the nonce, the ciphertext with its
tag.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from typing import Any, Final, Self

import msgspec

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
except ImportError as _absent:
    raise ImportError(
        'agentgraph.checkpoint.encrypted needs cryptography: pip install "agentgraph-engine[encryption]"'
    ) from _absent

from agentgraph.checkpoint.protocol import Checkpointer, Entry, Line, Span, ThreadInfo
from agentgraph.errors import ConfigError, StoreError
from agentgraph.threads import ThreadCall

__all__ = ["Encrypted"]

_SEAL: Final = b"\xa1"
"""No first byte of what the codec writes: what was never sealed is told from it."""
_KEY_SIZE: Final = 32
_PRINT_SIZE: Final = 4
_NONCE_SIZE: Final = 12
_TAG_SIZE: Final = 16
_LARGE: Final = 1_000_000
"""How many bytes are opened in a worker thread rather than in the event loop, which would stand for a millisecond."""


class Encrypted:
    """Keeps threads in `saver`, encrypted by `key`: 32 bytes from `Encrypted.new_key()`, kept where the store is not.

    Several keys let one be replaced: the first encrypts, and whatever any of them has encrypted is read. What another
    key or none has encrypted, and bytes that somebody has changed, are a `StoreError` that names thread and entry.
    Raises `ConfigError` for what is no key. A use::

        async with Encrypted(SqliteSaver("runs.db"), base64.b64decode(os.environ["RUNS_KEY"])) as saver:
            app = graph.compile(checkpointer=saver)
    """

    def __init__(self, saver: Checkpointer, key: bytes | Sequence[bytes]) -> None:
        self.saver = saver
        keys: list[Any] = [key] if isinstance(key, (bytes, str)) else list(key)
        if not keys:
            raise ConfigError("Encrypted needs a key, found none; Encrypted.new_key() makes one")
        for one in keys:
            if not isinstance(one, bytes) or len(one) != _KEY_SIZE:
                found = f"{type(one).__name__} of {len(one)}" if isinstance(one, (bytes, str)) else f"{type(one)}"
                raise ConfigError(f"a key is {_KEY_SIZE} bytes, as Encrypted.new_key() makes them; found {found}")
        self._keys = {_print(one): one for one in keys}
        self._newest = _print(keys[0])

    @staticmethod
    def new_key() -> bytes:
        """A new random key. `base64.b64encode` makes it a text."""
        return os.urandom(_KEY_SIZE)

    def __repr__(self) -> str:
        return f"<Encrypted {self.saver!r}>"

    async def __aenter__(self) -> Self:
        """Open the store."""
        await self.saver.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close it."""
        await self.saver.__aexit__(*error)

    async def claim(self, thread_id: str, graph: str, owner: str, lease: float) -> ThreadInfo | None:
        """See `Checkpointer.claim`."""
        return await self.saver.claim(thread_id, graph, owner, lease)

    async def append(
        self,
        thread_id: str,
        epoch: int,
        entries: Sequence[Entry],
        *,
        lease: float | None,
        status: str | None = None,
        drop: Sequence[Span] = (),
        new_line: Line | None = None,
        durable: bool = False,
    ) -> None:
        """See `Checkpointer.append`."""
        # here and not in a worker thread, however large: what is appended later must not overtake it
        cipher = _cipher(self._keys[self._newest], thread_id)
        sealed = [self._sealed(cipher, thread_id, entry) for entry in entries]
        await self.saver.append(
            thread_id, epoch, sealed, lease=lease, status=status, drop=drop, new_line=new_line, durable=durable
        )

    async def renew(self, thread_id: str, epoch: int, lease: float) -> None:
        """See `Checkpointer.renew`."""
        await self.saver.renew(thread_id, epoch, lease)

    async def release(self, thread_id: str, epoch: int, status: str | None = None) -> None:
        """See `Checkpointer.release`."""
        await self.saver.release(thread_id, epoch, status)

    async def thread(self, thread_id: str) -> ThreadInfo | None:
        """See `Checkpointer.thread`."""
        return await self.saver.thread(thread_id)

    async def threads(
        self, *, graph: str | None = None, status: str | None = None, after: str = "", limit: int = 100
    ) -> list[ThreadInfo]:
        """See `Checkpointer.threads`."""
        return await self.saver.threads(graph=graph, status=status, after=after, limit=limit)

    async def read(self, thread_id: str, within: Sequence[Span]) -> list[Entry]:
        """See `Checkpointer.read`. Raises `StoreError` for what cannot be decrypted."""
        found = await self.saver.read(thread_id, within)
        if sum(len(entry.data) for entry in found) > _LARGE:
            return await ThreadCall().run(self._opened, thread_id, found)
        return self._opened(thread_id, found)

    async def heads(self, thread_id: str, within: Sequence[Span], limit: int) -> list[Entry]:
        """See `Checkpointer.heads`. Raises `StoreError` for what cannot be decrypted."""
        return self._opened(thread_id, await self.saver.heads(thread_id, within, limit), with_data=False)

    async def delete(self, thread_id: str) -> None:
        """See `Checkpointer.delete`."""
        await self.saver.delete(thread_id)

    def _sealed(self, cipher: AESGCM, thread_id: str, entry: Entry) -> Entry:
        def seal(part: str, content: bytes) -> bytes:
            nonce = os.urandom(_NONCE_SIZE)
            return _SEAL + self._newest + nonce + cipher.encrypt(nonce, content, _place(thread_id, entry, part))

        key, head = entry.key, entry.head
        if key or _has_key(entry):
            key = base64.b85encode(seal("key", key.encode("utf-8", "surrogatepass"))).decode()
        if head or not _has_key(entry):
            head = seal("head", head)
        return msgspec.structs.replace(entry, key=key, head=head, data=seal("data", entry.data))

    def _opened(self, thread_id: str, entries: Sequence[Entry], *, with_data: bool = True) -> list[Entry]:
        ciphers: dict[bytes, AESGCM] = {}

        def open_part(entry: Entry, part: str, sealed: bytes) -> bytes:
            known, rest = sealed[1 : 1 + _PRINT_SIZE], sealed[1 + _PRINT_SIZE :]
            if sealed[:1] != _SEAL or len(rest) < _NONCE_SIZE + _TAG_SIZE:
                raise _closed(thread_id, entry, part, "it is not encrypted, or was cut")
            if known not in ciphers:
                if known not in self._keys:
                    given = ", ".join(one.hex() for one in self._keys)
                    why = f"it was encrypted by another key (or was changed): key {known.hex()}, and given was {given}"
                    raise _closed(thread_id, entry, part, why)
                ciphers[known] = _cipher(self._keys[known], thread_id)
            try:
                place = _place(thread_id, entry, part)
                return ciphers[known].decrypt(rest[:_NONCE_SIZE], rest[_NONCE_SIZE:], place)
            except InvalidTag:
                raise _closed(thread_id, entry, part, "it was changed, or moved here from elsewhere") from None

        opened: list[Entry] = []
        for entry in entries:
            key, head, data = entry.key, entry.head, entry.data
            if key or _has_key(entry):
                try:
                    sealed = base64.b85decode(key)
                except ValueError:
                    sealed = b""
                key = open_part(entry, "key", sealed).decode("utf-8", "surrogatepass")
            if head or not _has_key(entry):
                head = open_part(entry, "head", head)
            if with_data:
                data = open_part(entry, "data", data)
            opened.append(msgspec.structs.replace(entry, key=key, head=head, data=data))
        return opened


def _has_key(entry: Entry) -> bool:
    """Whether it is found by a key rather than told of by a head; of the other there is usually none."""
    return entry.kind == "record"


def _print(key: bytes) -> bytes:
    """What tells keys apart, and tells nothing of them."""
    return hashlib.blake2b(b"print", digest_size=_PRINT_SIZE, key=key, person=b"agentgraph").digest()


def _cipher(key: bytes, thread_id: str) -> AESGCM:
    """The thread's own: random nonces are good for some billions of parts under one key, and so for each thread."""
    name = thread_id.encode("utf-8", "surrogatepass")
    return AESGCM(hashlib.blake2b(name, digest_size=_KEY_SIZE, key=key, person=b"agentgraph 1").digest())


def _place(thread_id: str, entry: Entry, part: str) -> bytes:
    """What a sealed part is bound to."""
    name = thread_id.encode("utf-8", "surrogatepass")
    return msgspec.msgpack.encode((name, entry.seq, entry.line, entry.kind, entry.full, part))


def _closed(thread_id: str, entry: Entry, part: str, why: str) -> StoreError:
    return StoreError(f"thread {thread_id!r}, entry {entry.seq} ({entry.kind}): its {part} cannot be decrypted: {why}")
