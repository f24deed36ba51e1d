"The site's calculator: the package's own arithmetic in JavaScript, and the widget in a real browser."

import json, random, sys
from dataclasses import asdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from browser import Browser, find_browser, run_script
from calculator import DATA, arithmetic, calculator
from memtrain.core import MemtrainError, format_count, format_size
from memtrain.estimate import OPTIMIZERS, Step, estimate, parameter_sizes, state_bytes
from memtrain.families import list_models, predict_step, read_model, shape_of
from memtrain.model import GPTConfig, count_params
from memtrain.plan import CLOSED, TECHNIQUES, Option, plan
from to_js import Translator

SHOWN = "o => ({peak: o.peak, op: o.peak_op, moments: Object.fromEntries(o.moments.items().map(([k, v]) => [k, Object.fromEntries(v.items())]))})"


def in_javascript(code, given):
    "What `code`, a function of `given` that knows the package as `m`, gives."
    files = json.dumps(
        {name: json.loads((ROOT / "memtrain" / name).read_text(encoding="utf-8")) for name in DATA}
    )
    found = run_script(
        f"given => {{ const m = {arithmetic(ROOT)}; m.python.files = m.python.plain_dict({files}); return ({code})(given); }}",
        given,
    )
    if found is None:
        pytest.skip("neither node nor chromium is installed here: the calculator's JavaScript isn't run")
    return found


def draw(rng):
    "A random shape and step."
    heads = rng.choice([1, 2, 3, 4, 8, 12, 16])
    window = rng.choice([1, 2, 31, 64, 128, 500, 1024, 2048, 4096])
    shape = dict(
        vocab_size=rng.choice([65, 256, 1000, 4096, 32000, 50257, 128256]),
        block_size=window * rng.choice([1, 1, 2]),
        n_layer=rng.choice([1, 2, 3, 6, 12, 24, 80]),
        n_head=heads,
        n_embd=heads * rng.choice([8, 16, 32, 64, 128]),
        dropout=rng.choice([0.0, 0.0, 0.1]),
        bias=rng.random() < 0.5,
        tie_weights=rng.random() < 0.7,
    )
    step = dict(
        batch_size=rng.choice([1, 2, 3, 7, 16, 64]),
        seq_len=rng.choice([None, window]),
        gradient_accumulation_steps=rng.choice([1, 1, 2, 5]),
        use_mixed_precision=rng.random() < 0.5,
        optimizer=rng.choice(OPTIMIZERS),
        activation_checkpointing=rng.random() < 0.5,
        loss_chunk_size=rng.choice([None, None, 1, 256, 1024, 4096]),
    )
    return shape, step


def test_javascript_and_python_agree_to_the_byte():
    rng = random.Random(0)
    drawn = [(*draw(rng), device) for device in ("cuda", "cuda", "cuda", "cpu") for _ in range(500)]
    import torch

    code = f"""given => {{ m.python.threads = given.threads; const shown = {SHOWN};
      return given.drawn.map(([shape, step, device]) => shown(m.estimate(m.python.call(m.GPTConfig, [], Object.entries(shape)), m.python.call(m.Step, [], Object.entries(step)), device, false))); }}"""
    found = in_javascript(code, dict(drawn=drawn, threads=torch.get_num_threads()))
    assert len(found) == 2000
    for (shape, step, device), o in zip(drawn, found):
        e = estimate(GPTConfig(**shape), Step(**step), device, probe=False)
        assert o == dict(peak=e.peak, op=e.peak_op, moments=e.moments), (shape, step, device)


def draw_trained(rng, kinds):
    """A random model, of others by its name or ours by its fields, and a step of the ways that laws were
    recorded for."""
    name, adapters, ranks = rng.choice(kinds), rng.random() < 0.4, rng.choice([1, 1, 2, 4, 8, 64])
    heads = rng.choice([4, 8, 12, 32])
    ours = dict(
        vocab_size=rng.choice([4096, 50257, 128256]),
        block_size=2048,
        n_layer=rng.choice([1, 2, 12, 80]),
        n_head=heads,
        n_embd=heads * rng.choice([32, 64, 128]),
        n_kv_head=rng.choice([None, heads // 4]),
        tie_weights=rng.random() < 0.5,
        **rng.choice(
            [dict(), dict(norm="rms", positions="rotary", mlp="swiglu", mlp_hidden=rng.choice([None, 1000]))]
        ),
    )
    step = dict(
        batch_size=rng.choice([1, 2, 3, 8, 33]),
        seq_len=rng.choice([1, 128, 1000, 2048]),
        gradient_accumulation_steps=rng.choice([1, 1, 4]),
        use_mixed_precision=rng.random() < 0.4,
        optimizer=rng.choice(OPTIMIZERS),
        activation_checkpointing=rng.random() < 0.5,
        loss_chunk_size=rng.choice([None, 256, 1024]),
        weights=rng.choice(["float32", "bfloat16"]),
        optimizer_in_backward=rng.random() < 0.2,
        ranks=ranks,
        parallel=rng.choice(["ddp", "fsdp"]) if ranks > 1 else "ddp",
    )
    return (
        (
            name,
            step | dict(lora=rng.choice([1, 8, 64]), load_in_4bit=rng.random() < 0.5) if adapters else step,
        )
        if name
        else (ours, step)
    )


def test_laws_in_javascript_and_python_agree_to_the_byte():
    rng = random.Random(2)
    kinds = [None, *list_models()]
    drawn = [draw_trained(rng, kinds if i % 2 else [None]) for i in range(2000)]

    def told(model, step):
        try:
            e = predict_step(
                read_model(model) if isinstance(model, str) else shape_of(GPTConfig(**model)), Step(**step)
            )
        except MemtrainError as o:
            return str(o)
        return [e.peak, e.by_category, e.params, e.trained]

    code = """given => given.map(([model, step]) => { try {
      const shape = typeof model === 'string' ? m.read_model(model) : m.shape_of(m.python.call(m.GPTConfig, [], Object.entries(model))), e = m.predict_step(shape, m.python.call(m.Step, [], Object.entries(step)));
      return [e.peak, Object.fromEntries(e.by_category.items()), e.params, e.trained]; } catch (e) { return e.message; } })"""
    found, expected = in_javascript(code, drawn), [told(*o) for o in drawn]
    assert [(d, a) for d, a, b in zip(drawn, found, expected) if a != b] == []
    assert sum(isinstance(o, list) for o in expected) > 1500, "most of these steps have a law"


def test_a_config_of_hugging_face_is_read_by_the_same_code(tmp_path):
    given = [
        dict(
            model_type="qwen2",
            num_hidden_layers=2,
            hidden_size=64,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=100,
            vocab_size=256,
            max_position_embeddings=512,
            head_dim=32,
            tie_word_embeddings=True,
        ),
        dict(model_type="mamba", hidden_size=64),
    ]
    found = in_javascript(
        "given => given.map(c => { try { const s = m.read_model(m.python.plain_dict(c), 256); return Object.fromEntries(Object.entries(s).filter(o => o[0] !== 'name')); } catch (e) { return e.message; } })",
        given,
    )
    for c, o in zip(given, found):
        (tmp_path / "config.json").write_text(json.dumps(c))
        try:
            expected = {k: v for k, v in asdict(read_model(tmp_path, 256)).items() if k != "name"}
        except MemtrainError as e:
            expected = str(e)
        assert (
            o == expected
            if isinstance(o, dict)
            else o.partition(" is of the type ")[2] == expected.partition(" is of the type ")[2] > ""
        ), (o, expected)


def test_what_python_refuses_javascript_refuses_in_the_same_words():
    shape = dict(
        vocab_size=64, block_size=64, n_layer=1, n_head=1, n_embd=8, dropout=0.0, bias=True, tie_weights=True
    )
    wrong = [
        dict(batch_size=0),
        dict(seq_len=65),
        dict(optimizer="adagrad"),
        dict(loss_chunk_size=-1),
        dict(use_mixed_precision=1),
        dict(gradient_accumulation_steps=1.5),
    ]
    code = """given => given.wrong.map(step => { try { m.estimate(m.python.call(m.GPTConfig, [], Object.entries(given.shape)), m.python.call(m.Step, [], Object.entries(step)), 'cuda', false); return 'nothing'; }
      catch (e) { return e.message; } })"""

    def said(step):
        with pytest.raises(MemtrainError) as e:
            estimate(GPTConfig(**shape), Step(**step), "cuda")
        return str(e.value)

    assert in_javascript(code, dict(shape=shape, wrong=wrong)) == [said(o) for o in wrong]


def test_plans_and_their_lines_are_the_same():
    rng, drawn = random.Random(1), []
    while len(drawn) < 8:
        shape, _ = draw(rng)
        if shape["block_size"] > 31:
            drawn.append((shape, rng.choice(["rtx3090", "h100", "7.5gb"]), rng.choice([1, 6, 16]), CLOSED))
    drawn += [
        ("llama-3.2-1b", "2x24gb", 4, TECHNIQUES),
        (draw(rng)[0] | dict(block_size=256, dropout=0.0, n_layer=12), "4x8gb", 8, TECHNIQUES),
        (draw(rng)[0] | dict(block_size=256, dropout=0.0, n_layer=12), "16gb", 4, TECHNIQUES),
    ]
    code = """given => given.map(([shape, card, batch, allow]) => { const p = m.plan(typeof shape === 'string' ? m.read_model(shape, 512) : m.python.call(m.GPTConfig, [], Object.entries(shape)), card, null, batch, null, allow);
      return {budget: p.budget, text: p.__str__(), options: p.options.map(o => [o.peak, o.flags]), closest: [p.closest.peak, p.closest.flags]}; })"""
    for (shape, card, batch, allow), o in zip(drawn, in_javascript(code, drawn)):
        p = plan(
            read_model(shape, 512) if isinstance(shape, str) else GPTConfig(**shape),
            card,
            global_batch=batch,
            allow=allow,
        )
        assert o == dict(
            budget=p.budget,
            text=str(p),
            options=[[x.peak, x.flags] for x in p.options],
            closest=[p.closest.peak, p.closest.flags],
        )
        assert p.options or isinstance(shape, dict)


def test_sizes_are_told_in_the_same_words():
    sizes = [0, 1, 1023, 1024, 1536, 102_399, 10**6, 2**30 - 1, 2**30, 12_345_678_901, 5 * 2**45]
    found = in_javascript("given => given.map(n => [m.format_size(n), m.format_count(n)])", sizes)
    assert found == [[format_size(n), format_count(n)] for n in sizes]


PYTHON = '''
import math
LIMIT, (LOW, HIGH) = 10, (1, 3)
class Box:
    def __init__(self, n, scale=2): self.n, self.scale = n, scale
    def times(self, k=1, *, more=0): return self.n * self.scale * k + more
    def __enter__(self): return self
    def __exit__(self, *_): pass
    @property
    def half(self): return self.n // 2
def _pairs(n): return [(i, j) for i in range(n) for j in range(i) if (i + j) % 2]
def rest(**given): return {k: v for k, v in given.items() if v is not None}
def nested(n):
    total = 0
    def add(k, by=1): return k + by
    for i, x in enumerate(reversed(range(n))):
        if i > 2: break
        total += add(x, by=i)
    while total % 7: total -= 1
    return total
def show(n):
    first, *others, last = [n, n + 1, n + 2, n + 3]
    most = max((abs(x) for x in others), default=0)
    def first_of(*names, other=0): return next((d[k] for k in names if k in d), other)
    def pairs(k): yield k, 'x'
    box, d = Box(n, scale=3), {'a': 1, **rest(b=2, c=None)}
    with Box(n): total = [*pairs(n), first_of('q', 'b'), first_of('q', other=n)]
    d |= {'z': [1] * 2 + [0] * (n > 100)}
    return [total, first, last, most, -n // 4, -n % 4, n ** 2 / 8, box.times(2, more=1), box.half, _pairs(4), d.get('q', 'none'), sorted(d, reverse=True), 2 < n < LIMIT, n in (5, 6) or 'no', not [], (m := n + HIGH) and m,
            f'{n:,} {n / 3:.2f} {n / 400:.1%} {"x"!r}', math.ceil(n / 2), [x for x in 'abc'][-1], min([(2, 'b'), (2, 'a')], key=lambda t: t[1]), nested(n), sum([n > 1, True]), sorted({n, 7} - {n}), [1, 2, 3, 4][1:-1], dict(zip('ab', (LOW, HIGH)))['b']]
def reaches(n):
    if n: return 1
    with open('x') as f: return f
'''


def test_translated_python_means_the_same(tmp_path):
    (tmp_path / "one.py").write_text(PYTHON)
    space = {}
    exec(PYTHON, space)
    t = Translator(tmp_path)
    code = f"given => {{ const m = {t.script(dict(show='one', reaches='one'))}; let said; try {{ m.reaches(0); }} catch (e) {{ said = e.message; }} return [given.map(n => m.show(n)), m.reaches(1), said]; }}"
    found = run_script(code, [5, 123456])
    if found is None:
        pytest.skip("neither node nor chromium is installed here: the calculator's JavaScript isn't run")

    def plain(x):
        return [plain(o) for o in x] if isinstance(x, (list, tuple)) else x

    assert found[0] == plain([space["show"](n) for n in (5, 123456)])
    assert found[1] == 1 and "with open('x') as f" in found[2], (
        "what JavaScript can't do is an error where it is reached, and nowhere else"
    )


# --- in a browser --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser():
    if not find_browser():
        pytest.skip("no chromium is installed here: the calculator isn't tried in a browser")
    with Browser() as b:
        yield b


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    "A page with nothing but the calculator, that believes it is the site's."
    path = tmp_path_factory.mktemp("site") / "index.html"
    path.write_text(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><body id="quarto-content">{calculator(ROOT)}',
        encoding="utf-8",
    )
    return path


def ready(b):
    "The page, when its data is unpacked."
    b.run(
        "new Promise(done => { const look = () => document.querySelector('.mt-calc').dataset.ready === 'yes' ? done() : setTimeout(look, 5); look(); })"
    )
    return b


def put(b, **fields):
    "Type `fields`, one after the other."
    for k, v in fields.items():
        b.run(
            f"(() => {{ const f = document.querySelector('[name={k}]'), v = {json.dumps(v)}; if (f.type === 'checkbox') f.checked = v; else f.value = v; f.dispatchEvent(new Event('input', {{bubbles: true}})); }})()"
        )


def told(b, name):
    return b.run(f"document.querySelector('[data-id={name}]').textContent")


def test_calculator_tells_at_once_and_asks_for_nothing(browser, page):
    ready(browser.open(page))
    e = estimate(
        GPTConfig(vocab_size=50257, block_size=1024, n_layer=12, n_head=12, n_embd=768, bias=True),
        Step(8, 1024),
        "cuda",
    )
    assert browser.run("document.querySelector('[data-id=peak]').title") == f"{e.peak:,} bytes" and told(
        browser, "peak"
    ) == format_size(e.peak)
    assert e.peak_op in told(browser, "verdict") and "It fits" in told(browser, "verdict")
    assert (
        told(browser, "line")
        == f"memtrain train --dataset_dir data --out_dir run --model_name gpt2 {' '.join(Option(Step(8, 1024), 0, None).flags)}"
    )
    assert all(o.startswith("file:") for o in browser.asked()) and not browser.errors()


def test_calculator_says_what_to_change_and_changes_it(browser, page):
    put(ready(browser.open(page)), batch_size=64)
    assert "It doesn't fit" in told(browser, "verdict")
    browser.run(
        "new Promise(done => { const look = () => document.querySelector('[data-best]') ? done() : setTimeout(look, 20); look(); })"
    )
    shape = GPTConfig(vocab_size=50257, block_size=1024, n_layer=12, n_head=12, n_embd=768, bias=True)
    best = plan(shape, "rtx3090", global_batch=64, seq_len=1024).options[0]
    assert told(browser, "changes").startswith("cheapest in time that fits") and format_size(
        best.peak
    ) in told(browser, "changes")
    browser.run("document.querySelector('[data-best]').click()")
    assert "It fits" in told(browser, "verdict") and told(browser, "line").endswith(" ".join(best.flags))


def test_calculator_is_used_by_keyboard_and_kept_in_the_address(browser, page):
    ready(browser.open(page)).run("document.querySelector('[name=batch_size]').focus()")
    browser.press("ArrowUp", "Tab", "Tab", "ArrowUp")
    assert (
        browser.run(
            "[document.querySelector('[name=batch_size]').value, document.querySelector('[name=gradient_accumulation_steps]').value].join()"
        )
        == "9,2"
    )
    browser.run("document.querySelector('[name=activation_checkpointing]').focus()")
    browser.press("Space")
    peak, address = told(browser, "peak"), browser.run("location.href")
    assert peak == format_size(
        estimate(
            GPTConfig(vocab_size=50257, block_size=1024, n_layer=12, n_head=12, n_embd=768, bias=True),
            Step(9, 1024, 2, activation_checkpointing=True),
            "cuda",
        ).peak
    )
    assert told(ready(browser.open(address)), "peak") == peak and browser.run(
        "document.querySelector('[name=activation_checkpointing]').checked"
    )
    unnamed = browser.run(
        "[...document.querySelectorAll('.mt-calc input, .mt-calc select, .mt-calc textarea, .mt-calc button')].filter(o => !(o.ariaLabel || o.textContent.trim() || o.labels && o.labels[0])).length"
    )
    assert unnamed == 0


def test_calculator_knows_other_models_and_every_way_of_a_step(browser, page):
    put(
        ready(browser.open(page)),
        model="llama-3-8b",
        seq_len="2048",
        batch_size="2",
        use_mixed_precision="weights",
        activation_checkpointing=True,
        ranks="8",
        parallel="fsdp",
        gib="24",
    )
    shape, step = (
        read_model("llama-3-8b"),
        Step(2, 2048, weights="bfloat16", activation_checkpointing=True, ranks=8, parallel="fsdp"),
    )
    assert told(browser, "peak") == format_size(
        predict_step(shape, step).peak
    ) and "on each of 8 cards" in told(browser, "verdict")
    assert (
        told(browser, "line")
        == f"torchrun --standalone --nproc_per_node 8 -m memtrain train --dataset_dir data --out_dir run --model llama-3-8b {' '.join(Option(step, 0, None).flags)}"
    )
    assert "no tensor, pipeline or sequence parallelism" in told(browser, "note")
    put(browser, ranks="1", load_in_4bit=True)
    e = predict_step(
        shape, Step(2, 2048, weights="bfloat16", activation_checkpointing=True, lora=16, load_in_4bit=True)
    )
    assert (
        told(browser, "peak") == format_size(e.peak)
        and f"{format_count(e.trained)} of them trained" in told(browser, "note")
        and "--lora 16 --load_in_4bit" in told(browser, "line")
    )
    peak = told(browser, "peak")
    assert told(ready(browser.open(browser.run("location.href"))), "peak") == peak
    put(browser, optimizer="adamw8bit")
    assert "have an optimizer of their own" in told(browser, "verdict"), "what train refuses is refused here"
    put(
        browser,
        model="gpt2",
        optimizer="adamw",
        load_in_4bit=False,
        lora="0",
        use_mixed_precision="",
        n_experts="8",
    )
    moe = parameter_sizes(
        GPTConfig(
            vocab_size=50257, block_size=1024, n_layer=12, n_head=12, n_embd=768, bias=True, n_experts=8
        )
    )
    assert f"{format_size(8 * sum(moe) + state_bytes(moe, 'adamw'))} with gradients and states" in told(
        browser, "note"
    )
    assert "experts" in told(browser, "verdict") and told(browser, "line").endswith(
        "memtrain estimate --config_file shape.json --batch_size 2 --gradient_accumulation_steps 1 --seq_len 1024 --activation_checkpointing"
    )
    assert not browser.errors()


def test_calculator_reads_configs_of_hugging_face_and_says_what_it_does_not_know(browser, page):
    def paste(**config):
        put(browser, pasted=json.dumps(config))

    ready(browser.open(page))
    paste(
        model_type="gpt2",
        n_layer=24,
        n_embd=1024,
        n_head=16,
        vocab_size=50257,
        n_positions=1024,
        resid_pdrop=0.1,
    )
    shape = GPTConfig(
        vocab_size=50257, block_size=1024, n_layer=24, n_head=16, n_embd=1024, bias=True, dropout=0.1
    )
    assert told(browser, "peak") == format_size(
        estimate(shape, Step(8, 1024), "cuda").peak
    ) and "--config_file shape.json" in told(browser, "line")
    paste(
        vocab_size=256,
        block_size=1024,
        n_layer=2,
        n_head=4,
        n_embd=64,
        norm="rms",
        positions="rotary",
        mlp="swiglu",
        n_kv_head=2,
        rope_theta=5000.0,
    )
    own = GPTConfig(
        vocab_size=256,
        block_size=1024,
        n_layer=2,
        n_head=4,
        n_embd=64,
        norm="rms",
        positions="rotary",
        mlp="swiglu",
        n_kv_head=2,
    )
    assert (
        told(browser, "peak") == format_size(predict_step(shape_of(own), Step(8, 1024)).peak)
        and '"n_kv_head":2' in (line := told(browser, "line"))
        and '"rope_theta":5000' in line
        and f"{format_count(count_params(own))} parameters" in told(browser, "note")
    )
    assert told(ready(browser.open(browser.run("location.href"))), "line") == line, (
        "what the form has no place for is in the address"
    )
    llama = dict(
        num_hidden_layers=16,
        hidden_size=2048,
        num_attention_heads=32,
        num_key_value_heads=8,
        intermediate_size=8192,
        vocab_size=128256,
        max_position_embeddings=131072,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        head_dim=64,
    )
    paste(model_type="llama", **llama)
    peak = told(browser, "peak")
    assert peak == format_size(
        predict_step(read_model("llama-3.2-1b"), Step(8, 1024)).peak
    ) and "--model FOLDER" in told(browser, "line")
    paste(model_type="new", **llama)
    assert told(browser, "peak") == f"≈ {peak}" and "counted as Llama's" in told(browser, "note")
    paste(model_type="mixtral", num_local_experts=8, **llama)
    assert "whose law was not recorded" in told(browser, "verdict")
    put(browser, pasted='{"hidden_size": 3')
    assert "isn't JSON" in told(browser, "verdict")


def test_calculator_fits_a_phone(browser, page):
    ready(browser.open(page, width=390))
    browser.run("document.querySelectorAll('.mt-calc details').forEach(o => o.open = true)")
    assert browser.run("document.documentElement.scrollWidth") <= 390


def test_calculator_in_the_repository_is_that_of_the_package():
    assert (ROOT / "nbs/assets/calculator.html").read_text(encoding="utf-8") == calculator(ROOT), (
        "run 'make export'"
    )
    assert asdict(Step())  # its fields are the names by which the widget asks
