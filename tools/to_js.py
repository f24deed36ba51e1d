"""JavaScript from Python functions of the package, with all that they call: the arithmetic of the site's
calculator is never written a second time."""

import ast
from pathlib import Path

# what Python has and JavaScript hasn't: `//`, dicts, keyword arguments
RUNTIME = Path(__file__).with_suffix(".js")
RESERVED = set(
    "new default function this var delete typeof void switch case let const export extends super null true false undefined arguments eval static enum do catch throw".split()
)
BINOPS = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
    ast.BitOr: "or_",
    ast.LShift: "shift",
}
COMPARE = {ast.Eq: "eq", ast.Lt: "lt", ast.LtE: "le", ast.In: "has"}
TURNED = {ast.NotEq: ast.Eq, ast.Gt: ast.LtE, ast.GtE: ast.Lt, ast.NotIn: ast.In}
# written by hand in the runtime, as they read files or are the language's own
GIVEN = {"MemtrainError", "read_json", "_packaged"}


class Module:
    "The names that the module `name` in folder `package` defines, and where the others come from."

    def __init__(self, package: Path, name: str):
        self.name, self.defs, self.imports, self.siblings = name, {}, {}, {}
        for o in ast.parse((package / f"{name}.py").read_text(encoding="utf-8")).body:
            if isinstance(o, (ast.FunctionDef, ast.ClassDef)):
                self.defs[o.name] = o
            elif isinstance(o, (ast.Assign, ast.AnnAssign)):
                targets = o.targets if isinstance(o, ast.Assign) else [o.target]
                self.defs |= {n.id: o for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
            elif isinstance(o, ast.Import):
                self.imports |= {
                    a.asname or a.name.partition(".")[0]: a.name if a.asname else a.name.partition(".")[0]
                    for a in o.names
                }
            elif isinstance(o, ast.ImportFrom):
                for a in o.names:
                    if o.level or (o.module or "").startswith("memtrain."):
                        self.siblings[a.asname or a.name] = (o.module.rpartition(".")[2], a.name)
                    else:
                        self.imports[a.asname or a.name] = f"{o.module}.{a.name}"


def js_name(name: str) -> str:
    return name + "_" if name in RESERVED else name


class Translator:
    """Gathers, from the modules of `package`, what the functions that are asked for need, in an order in
    which it can be evaluated."""

    # `without`: functions that are an error if they are reached
    def __init__(self, package: Path, without: tuple[str, ...] = ()):
        self.package, self.without, self.modules, self.names, self.code, self.temps = (
            Path(package),
            without,
            {},
            {},
            [],
            0,
        )

    def module(self, name: str) -> Module:
        if name not in self.modules:
            self.modules[name] = Module(self.package, name)
        return self.modules[name]

    def need(self, module: str, name: str) -> str | None:
        "The JavaScript name of `name` in `module`, translated if it is ours; None where it isn't."
        mod = self.module(module)
        if name in GIVEN:
            return f"$.{name}"
        if name in mod.siblings:
            return self.need(*mod.siblings[name])
        if name in mod.imports:
            return f"$.world({mod.imports[name]!r})"
        if name not in mod.defs:
            return None
        if name in self.without:
            return f"(() => $.absent({name!r}))"
        if (module, name) not in self.names:
            node = mod.defs[name]
            for o in [k for k, v in mod.defs.items() if v is node]:
                self.names[module, o] = js_name(o if o not in {k for _, k in self.names} else f"{o}${module}")
            self.code.append(Writer(self, module).top(node))
        return self.names[module, name]

    def script(self, asked: dict[str, str]) -> str:
        """A JavaScript expression: an object of what is `asked` for, {name: module}, and `world`, which
        stands in for the machine."""
        found = [f"{name}: {self.need(module, name)}" for name, module in asked.items()]
        body = "\n".join(self.code)
        return f"(() => {{\nconst $ = {RUNTIME.read_text(encoding='utf-8').strip()};\n{body}\nreturn {{{', '.join(found)}, python: $}};\n}})()"


class Writer:
    "Writes statements and expressions of one definition in `module`."

    def __init__(self, translator: Translator, module: str):
        self.t, self.module, self.scopes = translator, module, []

    def own(self, name: str) -> str:
        return self.t.names.get((self.module, name), js_name(name)) if not self.scopes else js_name(name)

    def temp(self) -> str:
        self.t.temps += 1
        return f"$t{self.t.temps}"

    # --- definitions ---

    def top(self, node) -> str:
        if isinstance(node, ast.ClassDef):
            return self.klass(node)
        if isinstance(node, ast.FunctionDef):
            return self.function(node)
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [self.own(n.id) for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]
        return f"let {', '.join(names)};\n{self.statement(node)}"

    def params(self, args) -> tuple[list[str], list[str]]:
        "JavaScript's parameters and the names by which they can be given."
        plain, first = args.posonlyargs + args.args, len(args.posonlyargs + args.args) - len(args.defaults)
        res = [
            js_name(a.arg) + (f" = {self.e(args.defaults[i - first])}" if i >= first else "")
            for i, a in enumerate(plain)
        ]
        res += [
            js_name(a.arg) + (f" = {self.e(d)}" if d else "")
            for a, d in zip(args.kwonlyargs, args.kw_defaults)
        ]
        names = [a.arg for a in plain + args.kwonlyargs]
        if args.kwarg:
            res.append(f"{js_name(args.kwarg.arg)} = new $.Dict()")
            names.append(f"**{args.kwarg.arg}")
        if args.vararg:
            res.append(f"...{js_name(args.vararg.arg)}")
        return res, names

    def function(self, node, method: bool = False) -> str:
        "Of a function; a `method` without its first argument, which is `this`."
        bound = {a.arg for a in ast.walk(node.args) if isinstance(a, ast.arg)}
        local = {
            n.id for n in inside(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        } - bound
        nested = {o.name for o in inside(node) if isinstance(o, ast.FunctionDef) and o is not node}
        self.scopes.append(bound | local | nested)
        params, names = self.params(node.args)
        if method:
            params, names = params[1:], names[1:]
        body = [f"const {js_name(node.args.args[0].arg)} = this;"] if method else []
        if local:
            body.append(f"let {', '.join(js_name(o) for o in sorted(local))};")
        body += self.body(node.body)
        self.scopes.pop()
        star = "*" if any(isinstance(o, (ast.Yield, ast.YieldFrom)) for o in inside(node)) else ""
        text = "\n".join(body)
        name = js_name(node.name) if method else self.own(node.name)
        if method:
            return f"{star}{name}({', '.join(params)}) {{\n{text}\n}}"
        rest = (
            f" {name}.$rest = {len(node.args.posonlyargs + node.args.args)};"
            if node.args.vararg and node.args.kwonlyargs
            else ""
        )
        return f"function{star} {name}({', '.join(params)}) {{\n{text}\n}}\n{name}.$names = {names!r};{rest}"

    def klass(self, node) -> str:
        decorators = {
            getattr(d, "id", getattr(getattr(d, "func", None), "id", "")) for d in node.decorator_list
        }
        fields = [(o.target.id, o.value) for o in node.body if isinstance(o, ast.AnnAssign)]
        parts, names, init = (
            [],
            {},
            next((o for o in node.body if isinstance(o, ast.FunctionDef) and o.name == "__init__"), None),
        )
        name = self.own(node.name)
        for o in node.body:
            if not isinstance(o, ast.FunctionDef):
                continue
            kinds = {getattr(d, "id", getattr(d, "attr", "")) for d in o.decorator_list}
            if kinds & {"classmethod", "staticmethod"}:
                continue
            text = self.function(o, method=True)
            parts.append(("get " if kinds & {"property", "cached_property"} else "") + text)
            names[o.name] = [a.arg for a in o.args.args[1:] + o.args.kwonlyargs]
        if "dataclass" in decorators:
            params = [js_name(k) + (f" = {self.e(v)}" if v else "") for k, v in fields]
            after = "if (this.__post_init__) this.__post_init__();"
            parts.insert(
                0,
                f"constructor({', '.join(params)}) {{ {' '.join(f'this.{k} = {js_name(k)};' for k, _ in fields)} {after} }}",
            )
            signature = [k for k, _ in fields]
        else:
            parts.insert(0, "constructor(...args) { this.__init__(...args); }" if init else "")
            signature = names.get("__init__", [])
        body = "\n".join(parts)
        return f"class {name} {{\n{body}\n}}\n{name}.$names = {signature!r}; {name}.$methods = {names!r}; {name}.$fields = {[k for k, _ in fields]!r};"

    # --- statements ---

    def body(self, stmts) -> list[str]:
        return [
            self.statement(o)
            for i, o in enumerate(stmts)
            if not (isinstance(o, ast.Expr) and isinstance(o.value, ast.Constant))
        ]

    def block(self, stmts) -> str:
        return "{\n" + "\n".join(self.body(stmts)) + "\n}"

    def statement(self, o) -> str:
        if isinstance(o, ast.Return):
            return f"return {self.e(o.value) if o.value else 'null'};"
        if isinstance(o, ast.Expr):
            return f"{self.e(o.value)};"
        if isinstance(o, ast.Assign):
            if len(o.targets) == 1 and isinstance(o.targets[0], ast.Name):
                return f"{self.own(o.targets[0].id)} = {self.e(o.value)};"
            t = self.temp()
            return f"const {t} = {self.e(o.value)};\n" + "\n".join(self.assign(x, t) for x in o.targets)
        if isinstance(o, ast.AnnAssign):
            return self.assign(o.target, self.e(o.value)) if o.value else ""
        if isinstance(o, ast.AugAssign):
            return self.assign(o.target, self.binop(o.op, self.e(as_load(o.target)), self.e(o.value)))
        if isinstance(o, ast.If):
            return f"if ({self.test(o.test)}) {self.block(o.body)}" + (
                f" else {self.block(o.orelse)}" if o.orelse else ""
            )
        if isinstance(o, ast.For):
            t = self.temp()
            return (
                f"for (const {t} of $.iter({self.e(o.iter)})) {{\n{self.assign(o.target, t)}\n"
                + "\n".join(self.body(o.body))
                + "\n}"
            )
        if isinstance(o, ast.While):
            return f"while ({self.test(o.test)}) {self.block(o.body)}"
        if isinstance(o, ast.FunctionDef):
            return self.function(o)
        if isinstance(o, ast.Raise) and o.exc:
            return f"throw {self.e(o.exc)};"
        if isinstance(o, ast.Assert):
            return f"if (!({self.test(o.test)})) throw Error('assertion');"
        if isinstance(o, ast.Pass):
            return ""
        # errors come as they are
        if isinstance(o, ast.With) and not any(i.optional_vars for i in o.items):
            return self.block(o.body)
        if isinstance(o, (ast.Break, ast.Continue)):
            return type(o).__name__.lower() + ";"
        return f"$.absent({ast.unparse(o).splitlines()[0]!r});"

    def assign(self, target, value: str) -> str:
        if isinstance(target, ast.Name):
            return f"{self.own(target.id)} = {value};"
        if isinstance(target, ast.Attribute):
            return f"{self.e(target.value)}.{target.attr} = {value};"
        if isinstance(target, ast.Subscript):
            return f"$.set({self.e(target.value)}, {self.e(target.slice)}, {value});"
        t, res, n = self.temp(), [], len(target.elts)
        res.append(f"const {t} = [...$.iter({value})];")
        star = next((i for i, x in enumerate(target.elts) if isinstance(x, ast.Starred)), None)
        for i, x in enumerate(target.elts):
            if i == star:
                res.append(self.assign(x.value, f"{t}.slice({i}, {t}.length - {n - i - 1})"))
            else:
                res.append(
                    self.assign(x, f"{t}[{i}]" if star is None or i < star else f"{t}[{t}.length - {n - i}]")
                )
        return "\n".join(res)

    # --- expressions ---

    def test(self, o) -> str:
        text = self.e(o)
        return (
            text
            if isinstance(o, ast.Compare) or isinstance(o, ast.UnaryOp) and isinstance(o.op, ast.Not)
            else f"$.truth({text})"
        )

    def binop(self, op, a: str, b: str) -> str:
        if type(op) in BINOPS:
            return f"$.{BINOPS[type(op)]}({a}, {b})"
        sign = {ast.Div: "/", ast.Pow: "**"}.get(type(op))
        return f"(({a}) {sign} ({b}))" if sign else f"$.absent({type(op).__name__!r})"

    def compare(self, op, a: str, b: str) -> str:
        if isinstance(op, (ast.Is, ast.IsNot)):
            return f"($.plain({a}) {'===' if isinstance(op, ast.Is) else '!=='} $.plain({b}))"
        if type(op) in TURNED:
            return f"!{self.compare(TURNED[type(op)](), a, b)}"
        return f"$.{COMPARE[type(op)]}({a}, {b})"

    def e(self, o) -> str:
        "The expression `o`."
        found = getattr(self, f"e_{type(o).__name__}", None)
        return found(o) if found else f"$.absent({ast.unparse(o)!r})"

    def e_Constant(self, o) -> str:
        v = o.value
        if v is None or v is True or v is False:
            return {None: "null", True: "true", False: "false"}[v]
        if isinstance(v, str):
            return quoted(v)
        return repr(v) if isinstance(v, (int, float)) else f"$.absent({v!r})"

    def e_Name(self, o) -> str:
        if any(o.id in s for s in self.scopes):
            return js_name(o.id)
        return self.t.need(self.module, o.id) or f"$.builtin({o.id!r})"

    def e_Attribute(self, o) -> str:
        path, x = [o.attr], o.value
        while isinstance(x, ast.Attribute):
            path.insert(0, x.attr)
            x = x.value
        mod = self.t.module(self.module)
        if (
            isinstance(x, ast.Name)
            and not any(x.id in s for s in self.scopes)
            and x.id in mod.imports
            and x.id not in mod.defs
        ):
            return f"$.world({'.'.join([mod.imports[x.id], *path])!r})"
        return f"$.get({self.e(o.value)}, {o.attr!r})"

    def e_Tuple(self, o) -> str:
        return "[" + ", ".join(self.e(x) for x in o.elts) + "]"

    e_List = e_Tuple

    def e_Starred(self, o) -> str:
        return f"...$.iter({self.e(o.value)})"

    def e_Set(self, o) -> str:
        return f"$.set_of({self.e_Tuple(o)})"

    def e_Dict(self, o) -> str:
        return (
            "$.dict_of(["
            + ", ".join(
                f"[{self.e(k)}, {self.e(v)}]" if k else f"...$.items({self.e(v)})"
                for k, v in zip(o.keys, o.values)
            )
            + "])"
        )

    def e_BinOp(self, o) -> str:
        return self.binop(o.op, self.e(o.left), self.e(o.right))

    def e_UnaryOp(self, o) -> str:
        if isinstance(o.op, ast.Not):
            return (
                f"!{self.test(o.operand)}"
                if not isinstance(o.operand, ast.Compare)
                else f"!({self.e(o.operand)})"
            )
        return f"(-({self.e(o.operand)}))" if isinstance(o.op, ast.USub) else f"$.absent({ast.unparse(o)!r})"

    def e_BoolOp(self, o) -> str:
        parts = [self.e(x) for x in o.values]
        return f"$.{'and' if isinstance(o.op, ast.And) else 'or'}({parts[0]}, {', '.join('() => ' + bracketed(p) for p in parts[1:])})"

    def e_Compare(self, o) -> str:
        if len(o.ops) == 1:
            return self.compare(o.ops[0], self.e(o.left), self.e(o.comparators[0]))
        sides = [o.left, *o.comparators]
        return (
            "("
            + " && ".join(self.compare(op, self.e(a), self.e(b)) for op, a, b in zip(o.ops, sides, sides[1:]))
            + ")"
        )

    def e_IfExp(self, o) -> str:
        return f"({self.test(o.test)} ? {self.e(o.body)} : {self.e(o.orelse)})"

    def e_Yield(self, o) -> str:
        return f"(yield {self.e(o.value) if o.value else 'null'})"

    def e_NamedExpr(self, o) -> str:
        return f"({js_name(o.target.id)} = {self.e(o.value)})"

    def e_Lambda(self, o) -> str:
        self.scopes.append({a.arg for a in ast.walk(o.args) if isinstance(a, ast.arg)})
        params, _ = self.params(o.args)
        res = f"(({', '.join(params)}) => {bracketed(self.e(o.body))})"
        self.scopes.pop()
        return res

    def comprehension(self, o, push: str) -> str:
        "A loop that does `push`, made when the loop's names are known."
        names = {n.id for g in o.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}
        self.scopes.append(names)
        head, tail = f"const $r = []; let {', '.join(js_name(n) for n in sorted(names))};", ""
        for g in o.generators:
            t = self.temp()
            head += f" for (const {t} of $.iter({self.e(g.iter)})) {{ {self.assign(g.target, t)}".replace(
                "\n", " "
            )
            tail += " }"
            for test in g.ifs:
                head += f" if ({self.test(test)}) {{"
                tail += " }"
        text = f"(() => {{ {head} $r.push({push(self)});{tail} return $r; }})()"
        self.scopes.pop()
        return text

    def e_ListComp(self, o) -> str:
        return self.comprehension(o, lambda w: w.e(o.elt))

    e_GeneratorExp = e_ListComp

    def e_SetComp(self, o) -> str:
        return f"$.set_of({self.e_ListComp(o)})"

    def e_DictComp(self, o) -> str:
        return f"$.dict_of({self.comprehension(o, lambda w: f'[{w.e(o.key)}, {w.e(o.value)}]')})"

    def e_Subscript(self, o) -> str:
        if isinstance(o.slice, ast.Slice):
            return f"$.slice({self.e(o.value)}, {', '.join(self.e(x) if x else 'null' for x in (o.slice.lower, o.slice.upper, o.slice.step))})"
        return f"$.item({self.e(o.value)}, {self.e(o.slice)})"

    def e_Call(self, o) -> str:
        args = "[" + ", ".join(self.e(x) for x in o.args) + "]"
        kw = (
            "["
            + ", ".join(
                f"[{k.arg!r}, {self.e(k.value)}]" if k.arg else f"...$.items({self.e(k.value)})"
                for k in o.keywords
            )
            + "]"
            if o.keywords
            else ""
        )
        world = isinstance(o.func, ast.Attribute) and self.e(o.func).startswith("$.world(")
        if isinstance(o.func, ast.Attribute) and not world:
            return f"$.method({self.e(o.func.value)}, {o.func.attr!r}, {args}{', ' + kw if kw else ''})"
        return f"$.call({self.e(o.func)}, {args}{', ' + kw if kw else ''})"

    def e_JoinedStr(self, o) -> str:
        parts = []
        for x in o.values:
            if isinstance(x, ast.Constant):
                parts.append(quoted(x.value))
                continue
            how = f", {self.e(x.format_spec)}" if x.format_spec else ""
            parts.append(
                f"$.format({f'$.repr({self.e(x.value)})' if x.conversion == 114 else self.e(x.value)}{how})"
            )
        return "[" + ", ".join(parts) + "].join('')"


def quoted(text: str) -> str:
    "A JavaScript string that may stand inside a page."
    import json

    return json.dumps(text).replace("</", "<\\/")


def bracketed(text: str) -> str:
    return f"({text})" if text.startswith("{") else text


def as_load(target):
    return ast.copy_location(ast.parse(ast.unparse(target), mode="eval").body, target)


def inside(node):
    """The nodes of a function, its comprehensions' loops and nested functions left out, but for what `:=`
    binds."""
    todo = list(node.body)
    while todo:
        o = todo.pop()
        if isinstance(o, ast.FunctionDef):
            yield o
            continue
        if isinstance(o, ast.Lambda):
            continue
        if isinstance(o, (ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)):
            yield from (n.target for n in ast.walk(o) if isinstance(n, ast.NamedExpr))
            continue
        yield o
        todo += ast.iter_child_nodes(o)
