(() => {
const $ = {};
// What stands in for the machine: no GPU, nothing in the environment, `threads` of a CPU.
const world = {
  'pathlib.Path': x => ({given: x, is_dir: () => false, is_file: () => x instanceof Dict}),  // there are no files: a Dict stands for what a JSON file holds
  'math.ceil': Math.ceil, 'math.floor': Math.floor, 'math.log2': Math.log2, 'math.sqrt': Math.sqrt, 'math.inf': Infinity, 'math.prod': xs => [...$.iter(xs)].reduce((a, b) => a * b, 1),
  'os.environ.get': (key, other = null) => other, 'torch.cuda.is_available': () => false, 'torch.get_num_threads': () => $.threads,
  're.findall': (pattern, text) => [...text.matchAll(new RegExp(pattern, 'g'))].map(m => m[0]),
  're.fullmatch': (pattern, text) => text.match(new RegExp('^(?:' + pattern + ')$')),
  'collections.Counter': xs => { const res = new $.Dict(); for (const x of $.iter(xs)) res.set(x, (res.get(x) || 0) + 1); return res; },
  'dataclasses.replace': $kw((x, kw) => $.made(Object.assign(Object.create(Object.getPrototypeOf(x)), x, kw))),
  'itertools.product': (...lists) => lists.reduce((rows, list) => rows.flatMap(row => [...$.iter(list)].map(x => [...row, x])), [[]]),
  'itertools.chain': (...lists) => lists.flatMap(list => [...$.iter(list)]),
};
function $kw(f) { f.$kw = true; return f; }
$.threads = 2;
$.made = x => { if (x.__post_init__) x.__post_init__(); return x; };
$.absent = what => { throw new Error('the calculator has no ' + what); };
$.world = name => name in world ? world[name] : () => $.absent(name);

class MemtrainError extends Error {
  constructor(problem, way_out = '', argument = null, value = null) {
    super(([...(argument === null ? [] : [argument, ...(value === null ? [] : [$.repr(value)])]), problem].join(' ') + (way_out ? ': ' + way_out : '')).replace(/[\x02\x03]/g, ''));
    Object.assign(this, {problem, way_out, argument, value});
  }
}
MemtrainError.$names = ['problem', 'way_out', 'argument', 'value'];
$.MemtrainError = MemtrainError;

// A dict, in the order in which its keys came; a set is one without values.
class Dict {
  constructor() { this.map = new Map(); }
  set(k, v) { const key = $.key(k), old = this.map.get(key); this.map.set(key, [old ? old[0] : k, v]); return this; }
  get(k) { const found = this.map.get($.key(k)); return found && found[1]; }
  has(k) { return this.map.has($.key(k)); }
  delete(k) { return this.map.delete($.key(k)); }
  keys() { return [...this.map.values()].map(o => o[0]); }
  values() { return [...this.map.values()].map(o => o[1]); }
  items() { return [...this.map.values()].map(o => [o[0], o[1]]); }
  get length() { return this.map.size; }
}
class PySet extends Dict {}
$.Dict = Dict;
$.key = k => typeof k === 'object' && k !== null ? $.repr(k) : typeof k === 'boolean' ? +k : k;
$.plain_dict = x => Array.isArray(x) ? x.map($.plain_dict) : x && typeof x === 'object' ? $.dict_of(Object.entries(x).map(([k, v]) => [k, $.plain_dict(v)])) : x;
$.files = new Dict();  // the package's own data, by name
$._packaged = name => $.item($.files, name);
$.read_json = $kw(path => path.given);
$.dict_of = pairs => pairs.reduce((d, [k, v]) => d.set(k, v), new Dict());
$.set_of = xs => { const s = new PySet(); for (const x of $.iter(xs)) s.set(x, true); return s; };
$.items = x => x instanceof Dict ? x.items() : Object.entries(x);
$.iter = x => x instanceof Dict ? x.keys() : x;
$.plain = x => x === undefined ? null : x;
$.truth = x => x instanceof Dict || Array.isArray(x) || typeof x === 'string' ? x.length > 0 : Boolean(x);
$.and = (a, ...rest) => { for (const f of rest) { if (!$.truth(a)) return a; a = f(); } return a; };
$.or = (a, ...rest) => { for (const f of rest) { if ($.truth(a)) return a; a = f(); } return a; };

// Whole numbers are exact up to 2**53 bytes, 8 PiB.
const whole = n => { if (typeof n === 'number' && Math.abs(n) > 2 ** 63) throw new Error('a number is too large to be exact'); return n; };
const repeat = (xs, n) => { const res = []; for (let i = 0; i < n; i++) res.push(...xs); return res; };
$.add = (a, b) => Array.isArray(a) ? [...a, ...b] : whole(a + b);
$.sub = (a, b) => a instanceof PySet ? $.set_of(a.keys().filter(x => !b.has(x))) : a - b;
$.mul = (a, b) => Array.isArray(a) ? repeat(a, b) : Array.isArray(b) ? repeat(b, a) : typeof a === 'string' ? a.repeat(Math.max(0, b)) : typeof b === 'string' ? b.repeat(Math.max(0, a)) : whole(a * b);
$.mod = (a, b) => { const r = a % b; return r && (r < 0) !== (b < 0) ? r + b : r; };
$.floordiv = (a, b) => (a - $.mod(a, b)) / b;
$.shift = (a, b) => a * 2 ** b;
$.or_ = (a, b) => a instanceof PySet ? $.set_of([...a.keys(), ...b.keys()]) : a instanceof Dict ? $.dict_of([...a.items(), ...b.items()]) : a | b;
$.eq = (a, b) => { a = $.plain(a); b = $.plain(b); return a === b || (typeof a === 'object' && typeof b === 'object' && a !== null && b !== null ? $.repr(a) === $.repr(b) : typeof a !== typeof b && typeof a !== 'string' && typeof b !== 'string' && a !== null && b !== null && +a === +b); };
const order = (a, b) => {
  if (!Array.isArray(a)) return a < b ? -1 : a > b ? 1 : 0;
  for (let i = 0; i < Math.min(a.length, b.length); i++) { const o = order(a[i], b[i]); if (o) return o; }
  return a.length - b.length;
};
$.lt = (a, b) => order(a, b) < 0;
$.le = (a, b) => order(a, b) <= 0;
$.has = (x, xs) => xs instanceof Dict ? xs.has(x) : typeof xs === 'string' ? xs.includes(x) : [...xs].some(y => $.eq(x, y));
$.item = (xs, i) => {
  if (xs instanceof Dict) { if (!xs.has(i)) throw new Error('no key ' + i); return xs.get(i); }
  return Array.isArray(xs) || typeof xs === 'string' ? xs[i < 0 ? xs.length + i : +i] : xs[i];
};
$.set = (xs, i, v) => { if (xs instanceof Dict) xs.set(i, v); else xs[i < 0 ? xs.length + i : i] = v; };
$.slice = (xs, from, to, step) => {
  const all = typeof xs === 'string' ? [...xs] : [...$.iter(xs)], n = all.length, at = (i, other) => i === null ? other : Math.max(0, Math.min(n, i < 0 ? n + i : i));
  let res = all.slice(at(from, 0), at(to, n));
  if (step !== null && step < 0) { if (from !== null || to !== null) $.absent('such a slice'); res = all.reverse(); }
  if (step !== null && Math.abs(step) > 1) res = res.filter((_, i) => i % Math.abs(step) === 0);
  return typeof xs === 'string' ? res.join('') : res;
};

// Calls: by position, or by name as `$names` of a function or class has them.
const bind = (names, args, kw) => {
  const res = [...args], rest = names.find(o => o.startsWith('**')), others = new Dict();
  for (const [k, v] of kw) {
    const i = names.indexOf(k);
    if (i >= 0) res[i] = v; else if (rest) others.set(k, v); else throw new Error('no argument ' + k);
  }
  if (rest) res[names.indexOf(rest)] = others;
  return res;
};
const is_class = f => typeof f === 'function' && /^class\b/.test(Function.prototype.toString.call(f).slice(0, 6));
$.call = (f, args, kw) => {
  if (f.$rest !== undefined) args = [...args.slice(0, f.$rest), ...Array(f.$names.length - f.$rest), ...args.slice(f.$rest)];  // what is given by name alone comes before *args
  if (f.$class === undefined) f.$class = is_class(f);
  if (f.$kw) return f(...args, Object.fromEntries(kw || []));
  if (kw) args = bind(f.$names || [], args, kw);
  return f.$class ? new f(...args) : f(...args);
};
$.get = (x, name) => {
  if (x === null || x === undefined) throw new Error('None has no ' + name);
  const v = x[name];
  return typeof v === 'function' && !v.$names && typeof x !== 'function' ? v.bind(x) : v;
};
$.method = (x, name, args, kw) => {
  if (x !== null && typeof x === 'object' && !(x instanceof Dict) && !Array.isArray(x) && typeof x[name] === 'function')
    return x[name](...(kw ? bind((x.constructor.$methods || {})[name] || [], args, kw) : args));
  const kind = x instanceof PySet ? 'set' : x instanceof Dict ? 'dict' : Array.isArray(x) ? 'list' : typeof x === 'function' ? 'type' : typeof x;
  const f = (methods[kind] || {})[name] || (kind === 'type' && x[name]);
  return f ? f(x, ...args, ...(kw ? [Object.fromEntries(kw)] : [])) : $.absent(`${kind}.${name}`);
};
const methods = {
  dict: {items: d => d.items(), keys: d => d.keys(), values: d => d.values(), get: (d, k, other = null) => d.has(k) ? d.get(k) : other,
    setdefault: (d, k, v = null) => { if (!d.has(k)) d.set(k, v); return d.get(k); }, copy: d => $.dict_of(d.items()),
    update: (d, o = {}) => { for (const [k, v] of $.items(o)) d.set(k, v); return null; },
    pop: (d, k, other = null) => { const v = d.has(k) ? d.get(k) : other; d.delete(k); return v; }},
  set: {add: (s, x) => { s.set(x, true); return null; }},
  list: {append: (xs, x) => { xs.push(x); return null; }, extend: (xs, ys) => { xs.push(...$.iter(ys)); return null; }, index: (xs, x) => xs.findIndex(y => $.eq(x, y)),
    count: (xs, x) => xs.filter(y => $.eq(x, y)).length, insert: (xs, i, x) => { xs.splice(i, 0, x); return null; }, copy: xs => [...xs]},
  string: {join: (s, xs) => [...$.iter(xs)].join(s), lower: s => s.toLowerCase(), upper: s => s.toUpperCase(), strip: s => s.trim(), startswith: (s, p) => [p].flat().some(o => s.startsWith(o)),
    endswith: (s, p) => [p].flat().some(o => s.endsWith(o)), replace: (s, a, b) => s.replaceAll(a, b), split: (s, by) => by === undefined ? s.trim().split(/\s+/) : s.split(by),
    rjust: (s, n) => s.padStart(n), ljust: (s, n) => s.padEnd(n), rstrip: s => s.trimEnd(), removeprefix: (s, p) => s.startsWith(p) ? s.slice(p.length) : s, removesuffix: (s, p) => s.endsWith(p) ? s.slice(0, -p.length || undefined) : s,
    partition: (s, by) => { const i = s.indexOf(by); return i < 0 ? [s, '', ''] : [s.slice(0, i), by, s.slice(i + by.length)]; }, isdigit: s => /^\d+$/.test(s)},
  type: {fromkeys: (_, keys, v = null) => $.dict_of([...$.iter(keys)].map(k => [k, v]))},
};

// Builtins.
const best = pick => $kw((...all) => {
  const kw = all.pop(), xs = all.length === 1 ? [...$.iter(all[0])] : all, key = kw.key || (x => x);
  if (!xs.length) { if ('default' in kw) return kw.default; throw new Error('none to choose from'); }
  return xs.reduce((a, b) => pick(order(key(b), key(a))) ? b : a);
});
const int = x => typeof x === 'string' ? parseInt(x, 10) : Math.trunc(+x), float = x => Number(x), str = x => $.format(x), bool = x => $.truth(x);
const list = xs => xs === undefined ? [] : [...$.iter(xs)];
const dict = $kw((...all) => { const kw = all.pop(), d = new Dict(), x = all[0]; if (x) for (const [k, v] of x instanceof Dict ? x.items() : x) d.set(k, v); for (const [k, v] of Object.entries(kw)) d.set(k, v); return d; });
const builtins = {
  int, float, str, bool, list, dict, tuple: list, set: $.set_of, frozenset: $.set_of, len: x => x.length, abs: Math.abs, min: best(o => o < 0), max: best(o => o > 0),
  sum: (xs, start = 0) => { let n = start; for (const x of $.iter(xs)) n = $.add(n, x); return n; },
  range: (a, b, step = 1) => { if (b === undefined) [a, b] = [0, a]; const r = []; for (let i = a; step > 0 ? i < b : i > b; i += step) r.push(i); return r; },
  zip: (...lists) => { const all = lists.map(x => [...$.iter(x)]); return builtins.range(Math.min(...all.map(x => x.length))).map(i => all.map(x => x[i])); },
  enumerate: (xs, start = 0) => [...$.iter(xs)].map((x, i) => [i + start, x]), reversed: xs => [...$.iter(xs)].reverse(), any: xs => [...$.iter(xs)].some($.truth), all: xs => [...$.iter(xs)].every($.truth),
  map: (f, ...lists) => builtins.zip(...lists).map(row => f(...row)), filter: (f, xs) => [...$.iter(xs)].filter(x => $.truth(f ? f(x) : x)), iter: xs => $.iter(xs)[Symbol.iterator](),
  next: (xs, other) => { const o = xs[Symbol.iterator]().next(); if (o.done && other === undefined) throw new Error('no next'); return o.done ? other : o.value; },
  sorted: $kw((xs, kw) => { const key = kw.key || (x => x); return [...$.iter(xs)].map(x => [key(x), x]).sort((a, b) => (kw.reverse ? -1 : 1) * order(a[0], b[0])).map(o => o[1]); }),
  getattr: (x, name, other) => x[name] === undefined ? (other === undefined ? $.absent(name) : other) : x[name], hasattr: (x, name) => x[name] !== undefined, callable: x => typeof x === 'function',
  round: (x, n = 0) => Number(x.toFixed(n)), repr: x => $.repr(x), divmod: (a, b) => [$.floordiv(a, b), $.mod(a, b)],
  type: x => typeof x === 'boolean' ? bool : typeof x === 'number' ? (Number.isInteger(x) ? int : float) : typeof x === 'string' ? str : Array.isArray(x) ? list : x instanceof Dict ? dict : x && x.constructor,
  isinstance: (x, kinds) => [kinds].flat().some(k => builtins.type(x) === k || (k === int && typeof x === 'boolean') || (typeof k === 'function' && x instanceof k)),
  ValueError: Error, TypeError: Error, NotImplementedError: Error,
};
$.builtin = name => name in builtins ? builtins[name] : $.absent(name);
$.repr = x => {
  if (x === null || x === undefined) return 'None';
  if (typeof x === 'boolean') return x ? 'True' : 'False';
  if (typeof x === 'number') return String(x);
  if (typeof x === 'string') return `'${x}'`;
  if (Array.isArray(x)) return `(${x.map($.repr).join(', ')})`;
  if (x instanceof Dict) return `{${x.items().map(o => o.map($.repr).join(': ')).join(', ')}}`;
  return `${x.constructor.name}(${(x.constructor.$fields || Object.keys(x)).map(k => `${k}=${$.repr(x[k])}`).join(', ')})`;
};
const even = (n, d) => {  // Python rounds what lies exactly between two to the even one, JavaScript away from zero
  const exact = n.toFixed(Math.min(100, d + 60)), cut = exact.slice(0, exact.length - Math.min(100, d + 60) + d).replace(/\.$/, '');
  return /^50*$/.test(exact.slice(exact.indexOf('.') + 1 + d)) && Number(cut.at(-1)) % 2 === 0 ? cut : n.toFixed(d);
};
$.format = (x, how = '') => {
  const [, comma, digits, kind] = how.match(/^(,?)(?:\.(\d+))?([f%dg]?)$/) || $.absent('format ' + how);
  if (typeof x !== 'number') return typeof x === 'string' ? x : x && x.__str__ ? x.__str__() : $.repr(x);
  if (kind === 'g') return String(Number(x.toPrecision(digits || 6)));
  const n = kind === '%' ? 100 * x : x, d = digits === undefined ? (kind === '%' || kind === 'f' ? 6 : undefined) : Number(digits);
  const text = d === undefined ? String(n) : even(n, d);
  return (comma ? text.replace(/\B(?=(\d{3})+(?!\d))/g, ',') : text) + (kind === '%' ? '%' : '');
};
return $;
})()
