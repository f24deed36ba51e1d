"""Pickles that no pickler writes, from a grammar: values within values, as `pickle` would spell them, with
what it never does strewn in.

Changing the opcodes of real pickles mostly gives what is refused at once. Here nearly all opcodes fit what
stands on the stack, so that what is odd comes through to where it counts:
keys, states, shapes, types, storages, and what is fetched from the memo again and again."""

import pickle, random, struct

CALLS = (
    "collections OrderedDict",
    "builtins set",
    "builtins frozenset",
    "builtins complex",
    "builtins bytearray",
    "_codecs encode",
    "torch Size",
    "torch device",
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_tensor_v3",
    "torch._utils _rebuild_parameter",
    "torch.storage _load_from_bytes",
    "numpy dtype",
    "numpy.core.multiarray _reconstruct",
    "numpy.core.multiarray scalar",
    "numpy._core.numeric _frombuffer",
    "copyreg _reconstructor",
    "copyreg __newobj__",
)
NAMES = (
    *CALLS,
    "numpy ndarray",
    "builtins object",
    "torch FloatStorage",
    "torch float32",
    "somewhere Thing",
    "somewhere.else Other",
    "os system",
    "torch.nn.parameter Parameter",
)


def text(s: str) -> bytes:
    return (
        b"X" + struct.pack("<I", len(s.encode("utf-8", "surrogatepass"))) + s.encode("utf-8", "surrogatepass")
    )


def blob(data: bytes) -> bytes:
    return b"B" + struct.pack("<I", len(data)) + data


def number(n: int) -> bytes:
    return pickle.dumps(n, 2)[2:-1] if abs(n) < 2**2000 else b"K\x00"


class Grammar:
    "Writes values of every kind; `memo` counts the slots that are filled"

    def __init__(self, rng: random.Random):
        self.rng, self.memo, self.left = rng, 0, rng.choice((5, 30, 200, 2000))

    def value(self, depth: int = 0) -> bytes:
        "A value, often memoized, or one that was"
        rng = self.rng
        self.left -= 1
        if self.memo and rng.random() < 0.25:
            return self.again()
        if depth > rng.choice((3, 6, 150)) or self.left < 0:
            return self.leaf()
        made = rng.choice(
            (
                self.leaf,
                self.leaf,
                self.list,
                self.dict,
                self.tuple,
                self.set,
                self.record,
                self.call,
                self.tensor,
                self.array,
                self.bomb,
            )
        )(depth + 1)
        if rng.random() < 0.5:
            self.memo += 1
            made += b"\x94"
        return made

    def again(self) -> bytes:
        "A slot that is filled, or nearly"
        slot = max(0, self.memo - 1 - int(self.rng.expovariate(0.2))) + self.rng.choice((0,) * 50 + (1,))
        return b"h" + bytes([slot]) if slot < 256 else b"j" + struct.pack("<I", slot)

    def leaf(self, depth: int = 0) -> bytes:
        "A plain value"
        rng = self.rng
        return rng.choice(
            (
                b"N",
                b"\x88",
                b"\x89",
                b")",
                b"G" + struct.pack(">d", rng.choice((0.0, -1.5, float("nan"), float("inf"), 2.0**60))),
                text("a" * rng.choice((0, 1, 5, 300, 5000))),
                text("\ud800\u00ff"),
                number(rng.choice((0, 1, -1, 255, 2**31, 2**61 - 1, 2**63, -(2**64), 10**300))),
                blob(bytes(rng.choice((0, 1, 8, 5000)))),
                b"C\x04abcd",
                b"]",
                b"}",
                b"\x8f",
                self.name(),
            )
        )

    def name(self) -> bytes:
        return b"c" + self.rng.choice(NAMES).replace(" ", "\n").encode() + b"\n"

    def some(self, depth: int, most: int = 4) -> bytes:
        return b"".join(self.value(depth) for _ in range(self.rng.randrange(most + 1)))

    def list(self, depth: int) -> bytes:
        return b"](" + self.some(depth) + b"e" if self.rng.random() < 0.7 else b"]" + self.value(depth) + b"a"

    def dict(self, depth: int) -> bytes:
        "With keys of any kind"
        key = lambda: self.leaf() if self.rng.random() < 0.7 else self.value(depth)
        return b"}(" + b"".join(key() + self.value(depth) for _ in range(self.rng.randrange(4))) + b"u"

    def tuple(self, depth: int) -> bytes:
        "Short ones have opcodes of their own"
        n = self.rng.randrange(5)
        return (
            b"".join(self.value(depth) for _ in range(n)) + bytes([0x84 + n])
            if 0 < n < 4
            else b"(" + self.some(depth, 6) + b"t"
        )

    def set(self, depth: int) -> bytes:
        return (
            b"\x8f(" + self.some(depth) + b"\x90"
            if self.rng.random() < 0.5
            else b"(" + self.some(depth) + b"\x91"
        )

    def record(self, depth: int) -> bytes:
        "An object, with arguments and a state"
        made = b"csomewhere\nThing\n" + (b")" if self.rng.random() < 0.5 else self.tuple(depth)) + b"\x81"
        state = self.rng.choice(
            (
                self.dict,
                self.dict,
                self.tuple,
                self.list,
                lambda d: self.dict(d) + self.dict(d) + b"\x86",
                lambda d: b"N" + self.dict(d) + b"\x86",
                self.value,
            )
        )
        return made + state(depth) + b"b" if self.rng.random() < 0.8 else made

    def call(self, depth: int) -> bytes:
        return b"c" + self.rng.choice(CALLS).replace(" ", "\n").encode() + b"\n" + self.tuple(depth) + b"R"

    def numbers(self, n: int) -> bytes:
        "A shape or strides, mostly small"
        return (
            b"("
            + b"".join(
                number(
                    self.rng.choice((0, 1, 1, 1, 2, 2, 3))
                    if self.rng.random() < 0.97
                    else self.rng.choice((-1, 2**40, 2**63))
                )
                for _ in range(n)
            )
            + b"t"
        )

    def odd(self, made: bytes, depth: int) -> bytes:
        return made if self.rng.random() < 0.97 else self.value(depth)

    def storage(self, depth: int) -> bytes:
        "What `torch.save` wrote before the archives, as a value"
        kind, size = self.rng.choice(((b"Float", 4), (b"Long", 8), (b"BFloat16", 2)))
        count = self.rng.choice((0, 1, 6, 6, 7))
        if self.rng.random() < 0.1:
            count, kind = self.rng.choice((2**40, -1)), b"Object"
        parts = [
            pickle.dumps(o, 2)
            for o in (
                0x1950A86A20F9469CFC6C,
                1001,
                {
                    "protocol_version": 1001,
                    "little_endian": True,
                    "type_sizes": {"short": 2, "int": 4, "long": 4},
                },
            )
        ]
        parts.append(
            b"\x80\x02("
            + text("storage")
            + b"ctorch\n"
            + kind
            + b"Storage\n"
            + text("0")
            + text("cpu")
            + number(count)
            + b"NtQ."
        )
        parts += [
            pickle.dumps(["0"] * self.rng.choice((1,) * 20 + (2,)), 2),
            struct.pack("<Q", count & 2**64 - 1),
            bytes(max(0, min(count, 10)) * size),
        ]
        if self.rng.random() < 0.1:
            parts[self.rng.randrange(len(parts))] = Grammar(self.rng).file()
        return b"ctorch.storage\n_load_from_bytes\n" + blob(b"".join(parts)) + b"\x85R"

    def tensor(self, depth: int) -> bytes:
        "A torch tensor"
        n = self.rng.choice((0, 1, 1, 2, 2, 3)) if self.rng.random() < 0.98 else 70
        return (
            b"ctorch._utils\n_rebuild_tensor_v2\n("
            + self.odd(self.storage(depth), depth)
            + self.odd(b"K\x00", depth)
            + self.odd(self.numbers(n), depth)
            + self.odd(self.numbers(n), depth)
            + b"\x89}tR"
        )

    def array(self, depth: int) -> bytes:
        "A NumPy array, a dtype or a number of it"
        kind = (
            b"cnumpy\ndtype\n"
            + self.odd(text(self.rng.choice(("f4", "i4", "u4", "i4", "O", "f2"))), depth)
            + b"\x89\x88\x87R"
        )
        if self.rng.random() < 0.7:
            kind += (
                b"(K\x03" + text(self.rng.choice("<>|=")) + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
            )
        if self.rng.random() < 0.2:
            return (
                b"cnumpy.core.multiarray\nscalar\n"
                + kind
                + self.odd(blob(bytes(self.rng.choice((1, 4, 8)))), depth)
                + b"\x86R"
            )
        made = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R"
        n = self.rng.choice((0, 1, 6, 7))
        shape = self.rng.choice(
            (
                number(n) + b"\x85",
                number(1) + number(n) + b"\x86",
                number(n) + number(1) * 2 + b"\x87",
                self.numbers(2),
            )
        )
        return (
            made
            + b"(K\x01"
            + self.odd(shape, depth)
            + kind
            + self.odd(b"\x89", depth)
            + self.odd(blob(bytes(4 * n)), depth)
            + b"tb"
        )

    def bomb(self, depth: int) -> bytes:
        "Something fetched from the memo often, or nested deep"
        how, n = self.rng.randrange(5), self.rng.choice((20, 70, 3000, 60_000))
        if how == 0:
            return b"N" + b"\x85" * n
        if how == 1:
            return b"]" * min(n, 3000) + b"a" * (min(n, 3000) - 1)
        first = self.value(depth) + b"\x94"
        self.memo += 1
        if how == 2:
            return b"(" + first + self.again() * n + b"t"
        if how == 3:
            return (
                b"("
                + first
                + b"".join(
                    self.again() + self.value(depth) + self.rng.choice((b"\x81", b"R", b"b"))
                    for _ in range(min(n, 70))
                )
                + b"t"
            )
        made = b"(" + first
        for _ in range(min(n, 60)):
            made += self.again() * 2 + b"\x86\x94"
            self.memo += 1
        return made + b"t"

    def file(self) -> bytes:
        "One pickle or a few"
        made = b""
        for _ in range(self.rng.choice((1, 1, 1, 1, 2, 5))):
            self.memo = 0
            made += (
                b"\x80"
                + bytes([self.rng.choice((2, 3, 4, 4, 5))])
                + self.rng.choice(
                    (self.list, self.list, self.list, self.dict, self.tuple, self.columns, self.value)
                )(0)
                + b"."
            )
        return made

    def columns(self, depth: int) -> bytes:
        return (
            b"}("
            + b"".join(
                text(f"c{i}") + b"](" + b"".join(self.value(1) for _ in range(3)) + b"e"
                for i in range(self.rng.randrange(4))
            )
            + b"u"
        )


def make_pickle(data: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    "A pickle of the grammar, below 1 MB"
    while True:
        try:
            made = Grammar(rng).file()
        except RecursionError:
            continue
        if len(made) <= 10**6:
            return made


def read_twice(path: str) -> None:
    "The items of a pickle in its order, and by its index: both, or neither, and as many"
    from memtrain.core import MemtrainError
    from memtrain.lazypickle import build_index, iter_pickle

    found = []
    try:
        for _ in iter_pickle(path):
            found.append(0)
    except MemtrainError:
        found = None
    try:
        with build_index(path, "in.index") as index:
            again = [0 for _ in index] + [index[k] for k in range(min(3, len(index)))][:0]
    except MemtrainError:
        return  # what several items share has a budget in an index
    if again != found:
        raise ValueError(f"{found and len(found)} items, {len(again)} by the index")
