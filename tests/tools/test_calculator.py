"The site's calculator: its JavaScript held against Python, and the widget in a real browser."

import functools, json, random, re, shutil, subprocess, sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from browser import Browser, find_browser
from calculator import calculator, gathered
from check_site import served
from memtrain.core import CATEGORIES, MemtrainError, format_count, format_size
from memtrain.devices import find_device
from memtrain.estimate import Step
from memtrain.explain import read_message
from memtrain.families import (
    count_weights,
    find_config,
    has_law,
    list_models,
    predict_step,
    read_model,
    shape_of,
)
from memtrain.model import GPT, GPTConfig, count_params
from memtrain.optimizers import RECORDS
from memtrain.plan import Option, plan, usable_memory
from memtrain.record_laws import config_folder, open_any, trace_micro_batches
from memtrain.sampling import simulate_sampling
from memtrain.settings import TrainConfig
from memtrain.step_time import format_seconds, predict_seconds
from memtrain.train import apply_settings


@functools.cache
def arithmetic():
    "The calculator's, and what it knows, in JavaScript."
    source = (ROOT / "tools/calculator.js").read_text(encoding="utf-8")
    return f"{source}\nconst data = {json.dumps(gathered(ROOT))}, m = memtrain(data);"


def in_javascript(code, given):
    "What `code`, a function of `given` that knows the calculator's arithmetic as `m`, gives."
    if not shutil.which("node"):
        pytest.skip("Node isn't installed here: the calculator's JavaScript isn't run")
    script = f"""{arithmetic()}
      process.stdout.write(JSON.stringify(({code})({json.dumps(given)})));"""
    done = subprocess.run(["node", "-"], input=script, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


def draw_shape(rng):
    "A random shape of our own GPT."
    heads = rng.choice([4, 8, 12, 32])
    llama = dict(norm="rms", positions="rotary", mlp="swiglu", mlp_hidden=rng.choice([None, 1000]))
    config = GPTConfig(
        vocab_size=rng.choice([65, 256, 4096, 50257, 128256]),
        block_size=2048,
        n_layer=rng.choice([1, 2, 12, 80]),
        n_head=heads,
        n_embd=heads * rng.choice([8, 32, 64, 128]),
        n_kv_head=rng.choice([None, heads // 4]),
        tie_weights=rng.random() < 0.5,
        **rng.choice([{}, llama]),
    )
    return shape_of(config)


# by the weights that they update; of the others no formula knows the states
KNOWN = {
    weights: [o.name for o in RECORDS.values() if o.weights == weights and o.moments]
    for weights in ("float32", "bfloat16")
}


def draw_step(rng, adapters):
    "A random step of the ways that laws were recorded for."
    ranks, parallel = rng.choice([1, 1, 2, 4, 8, 64]), rng.choice(["ddp", "fsdp"])
    weights = rng.choice(["float32", "bfloat16"])
    return Step(
        batch_size=rng.choice([1, 2, 3, 8, 33]),
        seq_len=rng.choice([1, 31, 128, 1000, 2048]),
        gradient_accumulation_steps=rng.choice([1, 1, 4]),
        use_mixed_precision=rng.random() < 0.4,
        optimizer=rng.choice(KNOWN[weights]),
        activation_checkpointing=rng.random() < 0.5,
        loss_chunk_size=rng.choice([None, 1, 256, 1024]),
        weights=weights,
        optimizer_in_backward=rng.random() < 0.2,
        lora=rng.choice([1, 8, 64]) if adapters else 0,
        load_in_4bit=adapters and rng.random() < 0.5,
        ranks=ranks,
        parallel=parallel,
        offload_to_cpu=parallel == "fsdp" and rng.random() < 0.3,
    )


def test_javascript_and_python_agree_to_the_byte():
    rng, names, drawn = random.Random(0), list(list_models()), []
    for i in range(4000):
        shape = read_model(rng.choice(names)) if i % 2 else draw_shape(rng)
        step = draw_step(rng, adapters=i % 2 and rng.random() < 0.4)
        drawn.append((shape, step, rng.choice(["rtx3090", "h100", "mi300x"])))

    def told(shape, step, card):
        try:
            e = predict_step(shape, step, card)
        except MemtrainError:
            return None
        return [e.peak, e.by_category, e.params, e.trained, e.host]

    code = """given => given.map(([shape, step, card]) => {
      try {
        const e = m.predict(shape, step, data.cards[card]);
        return [e.peak, e.by_category, e.params, e.trained, e.host];
      }
      catch { return null; }
    })"""
    found = in_javascript(code, [(asdict(shape), asdict(step), card) for shape, step, card in drawn])
    expected = [told(*o) for o in drawn]
    assert [(d, a, b) for d, a, b in zip(drawn, found, expected) if a != b] == []
    assert sum(o is not None for o in expected) > 2500, "most of these steps have a law"


def test_plans_are_the_same():
    rng, drawn = random.Random(1), []
    for i in range(24):
        name = rng.choice([*list_models()])
        shape = draw_shape(rng) if i % 2 else read_model(name)
        card = rng.choice(["rtx3090", "h100", "a100", "t4", "7.5gb"])
        drawn.append((shape, card, rng.choice([1, 2, 4]), rng.choice([8, 16]), 8 if i % 8 == 0 else 0))
    drawn += [
        (read_model("llama-3.2-1b", 512), "24gb", 2, 4, 0),
        (read_model("llama-3-8b"), "24gb", 1, 4, 16),
    ]
    code = """given => given.map(([shape, name, budget, ranks, batch, lora]) => {
      const card = data.cards[name] || m.sized(parseFloat(name) * 2 ** 30);
      const p = m.plan(shape, card, budget, batch, shape.block_size, {ranks, lora});
      return [...p.options, p.closest].map(o => [o.peak, o.seconds, o.techniques, m.flags(o.step)]);
    })"""
    given = [(asdict(s), card, usable_memory(card), n, batch, lora) for s, card, n, batch, lora in drawn]
    for (shape, card, ranks, batch, lora), found in zip(drawn, in_javascript(code, given)):
        p = plan(shape, f"{ranks}x{card}", global_batch=batch, lora=lora, ram=2**60)
        for o, (peak, seconds, techniques, flags) in zip([*p.options, p.closest], found, strict=True):
            assert (o.peak, [*o.techniques], o.flags) == (peak, techniques, flags)
            assert seconds == pytest.approx(predict_seconds(shape, o.step, card), rel=1e-12)


def test_steps_take_as_long_whatever_optimizer_they_have():
    rng, drawn = random.Random(2), []
    while len(drawn) < 300:
        shape = read_model(rng.choice([*list_models()])) if len(drawn) % 2 else draw_shape(rng)
        step = draw_step(rng, adapters=False)
        if has_law(shape, step):
            drawn.append((shape, step))
    code = "given => given.map(([shape, step]) => m.seconds(shape, step, data.cards.h100))"
    found = in_javascript(code, [(asdict(shape), asdict(step)) for shape, step in drawn])
    assert found == pytest.approx([predict_seconds(*o, "h100") for o in drawn], rel=1e-12)


def test_what_pages_of_states_leave_on_the_card_is_the_same():
    names = "llama-3.1-8b qwen3-8b gemma-2-9b mistral-7b llama-3-70b phi-3-mini gpt2-xl".split()
    cards, drawn = ["t4", "rtx3090", "rtx5090", "l40s"], []
    for name in names:
        shape = read_model(name, 1024)
        drawn += [(shape, card, plan(shape, card, global_batch=4, ram=2**60).paged) for card in cards]
    code = "given => given.map(([shape, card]) => m.page(shape, data.cards[card], 1024))"
    told = in_javascript(code, [(asdict(shape), card) for shape, card, _ in drawn])
    # where everything fits that way, or nothing does, there is no word of it
    compared = [(o, found) for (_, _, o), found in zip(drawn, told) if o]
    assert len(compared) >= 5
    for (*_, o), found in zip(drawn, told):
        if o:
            assert (found["peak"], found["host"]) == (o.peak, o.host)
            assert {k: v for k, v in asdict(o.step).items() if k in found["step"]} == found["step"]
    flags = "given => given.map(step => m.flags(step))"
    assert in_javascript(flags, [found["step"] for _, found in compared]) == [o.flags for o, _ in compared]


FILMS = {
    path.stem: json.loads(path.read_text(encoding="utf-8"))
    for path in sorted((ROOT / "nbs/assets/films").glob("*.json"))
}
WINDOWS, TOKENS = 4, 896
SEVEN = dict(use_mixed_precision=True, loss_chunk_size=WINDOWS * TOKENS // 7)  # chunks, as in the films


def follow_step(config, step):
    "(operation, bytes of each category) when each tensor of a simulated `step` is made"
    settings = TrainConfig(
        weights=step.weights,
        activation_checkpointing=step.activation_checkpointing,
        loss_chunk_size=step.loss_chunk_size or 0,
    )
    trace = trace_micro_batches(
        lambda: apply_settings(GPT(config), settings).to("cuda"),
        WINDOWS,
        TOKENS,
        autocast=step.use_mixed_precision,
    )
    made = [b for b in trace.blocks if b.phase != "build" and b.size]
    return [[b.op.removeprefix("aten::"), trace.timeline[b.start].tolist()] for b in made]


@pytest.mark.parametrize("layers", [{}, dict(norm="rms", positions="rotary", mlp="swiglu", n_kv_head=4)])
@pytest.mark.parametrize("kw", [{}, dict(use_mixed_precision=True), SEVEN])
@pytest.mark.parametrize("again", [False, True])
def test_films_are_what_simulations_are_moment_by_moment(layers, kw, again):
    config = GPTConfig(5000, 1024, 7, 8, 512, tie_weights=not layers, **layers)
    shape = shape_of(config)
    step = Step(WINDOWS, TOKENS, optimizer_in_backward=True, activation_checkpointing=again, **kw)
    code = """({film, shape, step}) => m.play(film, shape, step, {workspace: 0}).moments
      .filter(o => o.tensor).map(o => [o.tensor.op, o.held])"""
    found = in_javascript(code, dict(film=FILMS[shape.kind], shape=asdict(shape), step=asdict(step)))
    truth = follow_step(config, step)
    assert [op for op, _ in found] == [op for op, _ in truth]
    states, peak = CATEGORIES.index("optimizer state"), max(sum(held) for _, held in truth)
    for (op, held), (_, true) in zip(found, truth):
        held[states] = 0  # which are simulated without an optimizer
        # whose sums are as many as there may be, in a law, and as are expected, in a simulation
        near = 0.005 if op == "embedding_dense_backward" else 1e-6
        assert held == pytest.approx(true, abs=near * peak), op


@pytest.mark.parametrize("kind", FILMS)
def test_the_peak_of_a_film_is_the_one_that_is_predicted(kind):
    rng, drawn = random.Random(0), []
    names = [name for name in list_models() if read_model(name).kind == kind]
    while names and len(drawn) < 40:
        step = replace(draw_step(rng, rng.random() < 0.4), ranks=1, parallel="ddp", offload_to_cpu=False)
        at_once = step.optimizer_in_backward and not step.lora and step.gradient_accumulation_steps == 1
        # of few tokens the constants count that laws leave out
        step = replace(step, optimizer_in_backward=at_once, seq_len=rng.choice([512, 1024]))
        shape = read_model(rng.choice(names), step.seq_len)
        if has_law(shape, step):
            drawn.append((asdict(shape), asdict(step)))
    code = """({film, drawn}) => drawn.map(([shape, step]) => {
      const {moments} = m.play(film, shape, step, data.cards.a100);
      const e = m.predict(shape, step, data.cards.a100);
      const tops = moments.map(o => o.held.reduce((a, b) => a + b));
      return [Math.max(...tops) / e.peak - 1, moments.every(o => o.held.every(n => n >= 0))];
    })"""
    found = in_javascript(code, dict(film=FILMS[kind], drawn=drawn))
    off = sorted(abs(o) for o, _ in found)
    assert all(possible for _, possible in found), "less than nothing is held"
    # those that are further off, by the masks of Gemma 3, aren't shown
    assert not off or off[len(off) * 3 // 4] < 0.005, off


def draw_text(rng):
    "What makes a random model of two or three blocks, its shape, and a text that it reads: tokens and rows"
    weights, blocks = rng.choice(["bfloat16", "float32"]), rng.choice([2, 3])
    tokens, rows = rng.choice([8, 16, 100, 1000]), rng.choice([1, 3, 8])
    shape = replace(draw_shape(rng), n_layer=blocks)
    llama = dict(norm="rms", positions="rotary", mlp="swiglu", mlp_hidden=shape.mlp_width)
    config = GPTConfig(
        shape.vocab_size,
        shape.block_size,
        blocks,
        shape.n_head,
        shape.n_embd,
        n_kv_head=shape.n_kv_head,
        tie_weights=shape.tie_weights,
        **(llama if shape.kind == "memtrain_llama" else {}),
    )
    settings = TrainConfig(weights=weights)
    return (lambda: apply_settings(GPT(config), settings)), shape, weights, rows, tokens


def numbers_of(found):
    return [found.weights, found.cache, found.growth, found.reading, found.writing]


SAMPLED = """given => given.map(([shape, ...how]) => {
  const e = m.sample(shape, ...how, data.cards.a100);
  return [e.weights, e.cache, e.growth, e.reading, e.writing];
})"""


def test_what_a_model_that_writes_holds_is_the_same():
    rng = random.Random(3)
    drawn = [draw_text(rng) for _ in range(60)]
    found = in_javascript(SAMPLED, [(asdict(shape), *how) for _, shape, *how in drawn])
    truth = [numbers_of(simulate_sampling(make, tokens, rows, "a100")) for make, *_, rows, tokens in drawn]
    assert [(o[1:], a, b) for o, a, b in zip(drawn, found, truth) if a != b] == []


OTHERS = "llama-3.2-1b", "qwen3-0.6b", "gpt2", "pythia-160m", "gemma-2b", "olmo-2-7b", "phi-4", "smollm3-3b"


@pytest.mark.parametrize("name", OTHERS)
def test_so_is_what_others_models_hold(name):
    pytest.importorskip("transformers")
    fields, _ = find_config(name)
    drawn = [(weights, rows, n) for weights in ("bfloat16", "float32") for rows, n in ((1, 1000), (3, 64))]
    # four blocks of it, since some have one in four that is unlike the others
    with config_folder(fields, 4) as folder:
        shape = read_model(folder)
        truth = [
            numbers_of(simulate_sampling(lambda: open_any(folder, n, weights=weights)[0], n, rows, "a100"))
            for weights, rows, n in drawn
        ]
    assert in_javascript(SAMPLED, [(asdict(shape), *how) for how in drawn]) == truth


def test_models_and_configs_are_read_the_same(tmp_path):
    qwen = dict(
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
    )
    given = [
        *([config, seq_len] for config in list_models().values() for seq_len in (None, 2048, 100_000)),
        *(
            [qwen | other, 256]
            for other in ({}, dict(attention_dropout=0.1), dict(partial_rotary_factor=0.5))
        ),
        [dict(model_type="mamba", hidden_size=64), 256],
    ]
    code = """given => given.map(([config, seq_len]) => {
      try { const s = m.read_model(config, seq_len); return [s, Object.values(m.count(s))]; }
      catch { return null; }
    })"""
    path = tmp_path / "config.json"
    for (config, seq_len), found in zip(given, in_javascript(code, given), strict=True):
        path.write_text(json.dumps(config))
        try:
            shape = read_model(path, seq_len)
        except MemtrainError:
            assert found is None, config
            continue
        sizes = asdict(shape) | dict(name="FOLDER")
        del sizes["laws"]
        assert found == [sizes, list(count_weights(shape))]


def test_sizes_are_told_in_the_same_words():
    sizes = [0, 1, 1023, 1024, 1536, 102_399, 10**6, 2**30 - 1, 2**30, 12_345_678_901, 5 * 2**45]
    found = in_javascript("given => given.map(n => [m.format_size(n), m.format_count(n)])", sizes)
    assert found == [[format_size(n), format_count(n)] for n in sizes]


MESSAGE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {}. GPU 0 has a total capacity of 23.57 "
    "GiB of which 512.00 MiB is free. Of the allocated memory 21.10 GiB is allocated by PyTorch, and 800.00 "
    "MiB is reserved by PyTorch but unallocated."
)
OLDER = (
    "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 23.69 GiB total capacity; 20.00 GiB already "
    "allocated; 1.50 GiB free; 21.00 GiB reserved in total by PyTorch)"
)


@pytest.mark.parametrize("text", [MESSAGE.format("1002.00 MiB"), MESSAGE.format("7.83\nGiB"), OLDER])
def test_messages_are_read_as_explain_reads_them(text):
    found, truth = in_javascript("text => m.read_error(text)", text), read_message(text)
    assert found.pop("others") == 0
    for name in found:
        assert found[name] == pytest.approx(vars(getattr(truth, name))), name
    assert {"asked", "total", "free", "allocated"} <= {*found}


def test_a_tensor_is_found_by_the_segment_that_it_asks_for():
    shape = read_model("llama-3.1-8b", 2048)
    given = [
        [asdict(shape) | dict(mlp_width=shape.mlp_width), size]
        for size in ("1002.00 MiB", "40.00 MiB", "1000.00 MiB")
    ]
    code = (
        "given => given.map(([shape, size]) => m.tensors_of(m.read_error('Tried to allocate ' + size + "
        "' total capacity of 23.57 GiB').asked, shape, 2048))"
    )
    logits, inner, none = in_javascript(code, given)
    assert logits[0]["text"] == "2,048 tokens × 128,256 logits, in float32" and logits[0]["cure"] == "logits"
    assert any(o["cure"] == "weights" and "128,256 × 4,096 embedding" in o["text"] for o in logits)
    assert none == [], "no tensor of it has that size"
    assert all(o["cure"] != "logits" for o in inner)


# --- in a browser --------------------------------------------------------------------------------

GPT2 = GPTConfig(vocab_size=50257, block_size=1024, n_layer=12, n_head=12, n_embd=768, bias=True)


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
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport"'
        f' content="width=device-width"><body id="quarto-content">{calculator(ROOT)}',
        encoding="utf-8",
    )
    return path


def ready(b):
    "The page, when its data is unpacked."
    b.run(
        "new Promise(done => { const look = () => document.querySelector('.mt-calc').dataset.ready === 'yes'"
        " ? done() : setTimeout(look, 5); look(); })"
    )
    return b


def ready_gpt2(b):
    "The same, asked about eight windows of GPT-2 in float32."
    asked = dict(model="gpt2", seq_len="1024", batch_size="8", gradient_accumulation_steps="1")
    put(ready(b), **asked, use_mixed_precision="")
    return b


def put(b, **fields):
    "Type `fields`, one after the other."
    for k, v in fields.items():
        b.run(
            f"(() => {{ const f = document.querySelector('[name={k}]'), v = {json.dumps(v)}; if (f.type ==="
            " 'checkbox') f.checked = v; else f.value = v; f.dispatchEvent(new Event('input', {bubbles:"
            " true})); })()"
        )


def until(selector):
    "What waits in the page for `selector` to be there, as long as a plan may take."
    return (
        "new Promise((done, failed) => { const end = Date.now() + 20000, look = () => "
        f"document.querySelector('{selector}') ? done() : Date.now() > end ? failed('{selector}') : "
        "setTimeout(look, 20); look(); })"
    )


def told(b, name):
    return b.run(f"document.querySelector('[data-id={name}]').textContent")


def test_calculator_tells_at_once_and_asks_for_nothing(browser, page):
    ready_gpt2(browser.open(page))
    e = predict_step(shape_of(GPT2), Step(8, 1024))
    assert browser.run("document.querySelector('[data-id=peak]').title") == f"{e.peak:,} bytes" and told(
        browser, "peak"
    ) == format_size(e.peak)
    assert "It fits" in told(browser, "verdict")
    assert (
        told(browser, "line") == "memtrain train --dataset_dir data --out_dir run --model_name gpt2"
        f" {' '.join(Option(Step(8, 1024), 0, None).flags)}"
    )
    assert (
        all(o["request"]["url"].startswith("file:") for o in browser.told("Network.requestWillBeSent"))
        and not browser.errors()
    )


def test_calculator_begins_with_the_question_of_most_and_answers_it(browser, page):
    ready(browser.open(page))
    assert "It doesn't fit rtx3090" in told(browser, "verdict")
    browser.run(
        "new Promise(done => { const look = () => document.querySelector('[data-best]') ? done() :"
        " setTimeout(look, 20); look(); })"
    )
    llama = read_model("llama-3.1-8b", 2048)
    found = plan(llama, "rtx3090", global_batch=16, or_lora=16, ram=0).options
    best = found[0]
    assert best.method == "LoRA" and told(browser, "changes").startswith(
        f"cheapest in time that fits: LoRA of rank 16, {best.step.batch_size} × "
    )
    browser.run("document.querySelector('[data-best]').click()")
    assert told(browser, "peak") == format_size(best.peak) and "It fits" in told(browser, "verdict")
    assert told(browser, "line").endswith(" ".join(best.flags))
    # and how long it takes
    rate = float(f"{best.tokens_per_second:.2g}")
    assert f"{rate:,.0f} tokens/s: {format_seconds(10**8 / best.tokens_per_second)} for 100M" in told(
        browser, "pace"
    ), told(browser, "pace")
    # nothing that the card alone can do: what takes RAM says how much
    put(browser, model="llama-3-70b", lora="0")
    browser.run(
        "new Promise(done => { const look = () => document.querySelector('[data-id=changes] [data-best],"
        " [data-id=changes] p') ? done() : setTimeout(look, 20); look(); })"
    )
    assert "GiB of RAM" in told(browser, "changes") or "doesn't fit either" in told(browser, "changes")
    assert not browser.errors()


def test_calculator_says_what_to_change_and_changes_it(browser, page):
    put(ready_gpt2(browser.open(page)), batch_size=64)
    assert "It doesn't fit" in told(browser, "verdict")
    browser.run(
        "new Promise(done => { const look = () => document.querySelector('[data-best]') ? done() :"
        " setTimeout(look, 20); look(); })"
    )
    best = plan(shape_of(GPT2), "rtx3090", global_batch=64, seq_len=1024).options[0]
    assert told(browser, "changes").startswith("cheapest in time that fits") and format_size(
        best.peak
    ) in told(browser, "changes")
    browser.run("document.querySelector('[data-best]').click()")
    assert "It fits" in told(browser, "verdict") and told(browser, "line").endswith(" ".join(best.flags))


def test_calculator_is_used_by_keyboard_and_kept_in_the_address(browser, page):
    ready_gpt2(browser.open(page)).run("document.querySelector('[name=batch_size]').focus()")
    browser.press("ArrowUp", "Tab", "Tab", "ArrowUp")
    assert (
        browser.run(
            "[document.querySelector('[name=batch_size]').value,"
            " document.querySelector('[name=gradient_accumulation_steps]').value].join()"
        )
        == "9,2"
    )
    browser.run("document.querySelector('[name=activation_checkpointing]').focus()")
    browser.press("Space")
    peak, address = told(browser, "peak"), browser.run("location.href")
    step = Step(9, 1024, 2, activation_checkpointing=True)
    assert peak == format_size(predict_step(shape_of(GPT2), step).peak)
    assert told(ready(browser.open(address)), "peak") == peak and browser.run(
        "document.querySelector('[name=activation_checkpointing]').checked"
    )
    unnamed = browser.run(
        "[...document.querySelectorAll('.mt-calc input, .mt-calc select, .mt-calc textarea, .mt-calc"
        " button')].filter(o => !(o.ariaLabel || o.textContent.trim() || o.labels && o.labels[0])).length"
    )
    assert unnamed == 0


def test_calculator_knows_other_models_and_every_way_of_a_step(browser, page):
    put(
        ready_gpt2(browser.open(page)),
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
        == "torchrun --standalone --nproc_per_node 8 -m memtrain train --dataset_dir data --out_dir run"
        f" --model llama-3-8b {' '.join(Option(step, 0, None).flags)}"
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
    put(browser, optimizer="sgd")
    said = told(browser, "verdict")
    assert "doesn't update weights in bfloat16" in said, "what train refuses is refused here"
    put(
        browser,
        model="gpt2",
        optimizer="adamw",
        load_in_4bit=False,
        lora="0",
        use_mixed_precision="",
        n_experts="8",
    )
    moe = count_params(replace(GPT2, n_experts=8))
    assert f"{format_size(16 * moe)} with gradients and states" in told(browser, "note")
    assert "experts" in told(browser, "verdict") and told(browser, "line").endswith(
        "memtrain estimate --config_file shape.json --batch_size 2 --gradient_accumulation_steps 1 --seq_len"
        " 1024 --activation_checkpointing"
    )
    assert not browser.errors()


def test_calculator_reads_configs_of_hugging_face_and_says_what_it_does_not_know(browser, page):
    def paste(**config):
        put(browser, pasted=json.dumps(config))

    ready_gpt2(browser.open(page))
    gpt2 = dict(model_type="gpt2", n_layer=24, n_embd=1024, n_head=16, vocab_size=50257, n_positions=1024)
    paste(**gpt2, resid_pdrop=0.0)
    shape = shape_of(replace(GPT2, n_layer=24, n_head=16, n_embd=1024))
    assert told(browser, "peak") == format_size(predict_step(shape, Step(8, 1024)).peak)
    assert "--config_file shape.json" in told(browser, "line")
    paste(**gpt2, resid_pdrop=0.1)
    assert "dropout has no recorded law" in told(browser, "verdict")
    assert '"dropout":0.1' in told(browser, "line") and "memtrain estimate" in told(browser, "line")
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


def test_calculator_reads_an_out_of_memory_message(browser, page):
    b = ready(browser.open(page))
    put(b, error=MESSAGE.format("1002.00 MiB"))
    assert "2,048 tokens × 128,256 logits, in float32" in told(b, "cause") and "use_liger_kernel" in told(
        b, "cause"
    )
    assert "310 MiB would be left" in told(b, "cause") and "expandable_segments" not in told(b, "cause")
    assert b.run("document.querySelector('[name=gib]').value") == "23.57"
    put(b, error=MESSAGE.format("3.00 GiB"))
    assert "1.72 GiB are missing" in told(b, "cause") and "Other processes" not in told(b, "cause")
    put(b, error=MESSAGE.format("3.00 GiB") + " Process 4242 has 15.00 GiB memory in use.")
    assert "Other processes hold 15.0 GiB" in told(b, "cause")
    put(b, error=MESSAGE.format("20.00 MiB"))
    assert "1.28 GiB were free, but not in one piece" in told(b, "cause") and "small tensor" in told(
        b, "cause"
    )
    put(b, card="a100")
    assert b.run("document.querySelector('[name=card]').value") == "a100", "another card can be tried"
    put(b, error=MESSAGE.format("1002.00 MiB"), model="gpt2")
    assert "No tensor of gpt2 is that large" in told(b, "cause")
    put(b, error="it died")
    assert "Tried to allocate" in told(b, "verdict") and not told(b, "cause")
    put(b, error="")
    assert "GiB" in told(b, "peak")


def test_calculator_draws_the_high_points_of_a_step_in_order(browser, page):
    b = ready(browser.open(page))
    words = b.run("document.querySelector('[data-id=points] svg').getAttribute('aria-label')")
    names = re.findall(r"[:,] ([a-z' ]+) [\d.]+ GiB", words)
    assert names == ["between steps", "the loss", "backward begins", "backward ends", "the optimizer's step"]
    assert f"the loss {told(b, 'peak')}" in words, "the peak is one of them"
    put(b, loss_chunk_size="256", activation_checkpointing=True)
    drawn = b.run("[...document.querySelectorAll('[data-id=points] text')].map(o => o.textContent)")
    sizes = [float(o.split()[0]) for o in drawn if "GiB" in o]
    assert f"{max(sizes):g} GiB" == told(b, "peak")


def test_calculator_says_which_models_have_adapters_and_drops_4_bits_without_them(browser, page):
    b = ready(browser.open(page))
    put(b, load_in_4bit=True)
    assert b.run("document.querySelector('[name=lora]').value") == "16"
    put(b, lora="0")
    assert not b.run("document.querySelector('[name=load_in_4bit]').checked") and "GiB" in told(b, "peak")
    put(b, model="gpt2", lora="16")
    assert "choose one of those, or set the rank to 0" in told(b, "verdict")


def price(b):
    "The dollars in the line on time."
    return float(re.search(r"\$([\d,]+(\.\d+)?)", told(b, "pace"))[1].replace(",", ""))


def test_calculator_says_what_training_costs(browser, page):
    b = ready(browser.open(page))
    put(b, model="gpt2", card="a100")
    assert "for 100M tokens." in told(b, "pace"), told(b, "pace")
    put(b, price="2")
    once = price(b)
    put(b, price="4")
    assert price(b) == pytest.approx(2 * once, rel=0.06)
    put(b, tokens="1000")
    assert "for 1B tokens, $" in told(b, "pace")
    assert price(b) == pytest.approx(20 * once, rel=0.06)
    # and where it doesn't fit, of what would
    put(b, model="llama-3.1-8b", seq_len="2048", card="rtx3090")
    assert not told(b, "pace")
    b.run(until("[data-best]"))
    assert "for 1B tokens, $" in b.run("document.querySelector('[data-best]').textContent")


def test_calculator_offers_paged_states_where_nothing_else_trains_the_whole_model(browser, page):
    b = ready(browser.open(page))
    b.run(until("[data-paged]"))
    paged = plan(read_model("llama-3.1-8b", 2048), "rtx3090", global_batch=16, or_lora=16, ram=2**60).paged
    b.run("document.querySelector('[data-paged]').click()")
    assert told(b, "peak") == format_size(paged.peak) and "It fits" in told(b, "verdict")
    assert f"with up to {format_size(paged.host)} in RAM" in told(b, "verdict") and not told(b, "pace")
    assert told(b, "line").endswith(" ".join(paged.flags))
    assert told(ready(b.open(b.run("location.href"))), "peak") == format_size(paged.peak)
    put(b, card="a100", batch_size="2")  # where it isn't needed
    assert "GiB" in told(b, "peak") and not b.errors()


def test_calculator_says_what_it_takes_to_run_a_model(browser, page):
    b = ready(browser.open(page))
    put(b, task="sampling", seq_len="4096", batch_size="4")
    shape = asdict(read_model("llama-3.1-8b", 4096))
    (found,) = in_javascript(SAMPLED, [(shape, "bfloat16", 4, 4096)])  # which are held against simulations
    weights, cache, growth, *peaks = found
    card = find_device("rtx3090").workspace - find_device("a100").workspace
    assert told(b, "peak") == format_size(max(peaks) + card) and "It fits" in told(b, "verdict")
    legend = told(b, "legend")
    assert f"weights {format_size(weights)}" in legend and f"KV cache {format_size(cache)}" in legend
    assert cache == 2 * 2 * 32 * 8 * 128 * 4 * 4096 and format_size(growth) in told(b, "note")
    room = int(re.search(r"room for about ([\d,]+) tokens", told(b, "note"))[1].replace(",", ""))
    assert 4096 < room < 131072
    line = "memtrain estimate --sampling --model llama-3.1-8b --seq_len 4096 --batch_size 4"
    assert told(b, "line") == f"{line} --weights bfloat16 --device rtx3090"
    shown = "document.querySelector('[name={}]').offsetParent !== null"
    assert not b.run(shown.format("optimizer")) and b.run(shown.format("seq_len"))
    peak = told(b, "peak")
    assert told(ready(b.open(b.run("location.href"))), "peak") == peak
    b.run("document.querySelector('[data-id=changes] button').click()")
    assert told(b, "peak") != peak
    put(b, use_mixed_precision="")
    assert "bfloat16 weights" in told(b, "changes") and "It doesn't fit" in told(b, "verdict")
    put(b, model="gemma-2-9b", seq_len="2048")
    assert "has a window" in told(b, "verdict") and "--model gemma-2-9b" in told(b, "line")
    put(b, task="", model="gpt2")
    assert b.run(shown.format("optimizer")) and told(b, "line").startswith("memtrain train")
    assert not b.errors()


def test_calculator_loads_what_is_frozen_in_bfloat16_until_told_otherwise(browser, page):
    b = ready(browser.open(page))
    put(b, lora="8")
    assert b.run("document.querySelector('[name=use_mixed_precision]').value") == "weights"
    half = told(b, "peak")
    put(b, use_mixed_precision="1")
    assert "stays in float32" in told(b, "note") and told(b, "peak") != half
    put(b, lora="16")
    assert b.run("document.querySelector('[name=use_mixed_precision]').value") == "1", "that was asked for"


CONFIG = dict(
    model_type="llama",
    num_hidden_layers=2,
    hidden_size=512,
    num_attention_heads=8,
    intermediate_size=1024,
    vocab_size=32000,
    max_position_embeddings=4096,
)


def drop(b, name, text):
    "Drop a file with `text` on the calculator, and wait until it is read."
    b.run(
        "new Promise(done => { const held = new DataTransfer(), root = document.querySelector('.mt-calc');"
        f" held.items.add(new File([{json.dumps(text)}], {json.dumps(name)}));"
        " for (const kind of ['dragover', 'drop'])"
        " root.dispatchEvent(new DragEvent(kind, {dataTransfer: held, bubbles: true, cancelable: true}));"
        " setTimeout(done, 200); })"
    )


def test_a_config_can_be_dropped_or_chosen(browser, page, tmp_path):
    b = ready(browser.open(page))
    drop(b, "config.json", json.dumps(CONFIG))
    assert b.run("document.querySelector('[name=model]').value") == ""
    assert b.run("document.querySelector('[name=n_embd]').value") == "512" and "GiB" in told(b, "peak")
    assert not b.run("document.querySelector('.mt-calc').classList.contains('over')")
    drop(b, "photo.png", "no JSON")
    assert "isn't JSON" in told(b, "verdict")
    drop(b, "train.log", MESSAGE.format("1002.00 MiB"))
    assert "What asked for 1002 MiB" in told(b, "cause") and b.run(
        "document.querySelector('[data-id=died]').open"
    )
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG | dict(hidden_size=1024)))
    b.send("DOM.enable")
    root = b.send("DOM.getDocument")["root"]["nodeId"]
    field = b.send("DOM.querySelector", nodeId=root, selector="[name=file]")["nodeId"]
    b.send("DOM.setFileInputFiles", nodeId=field, files=[str(path)])
    b.run("new Promise(done => setTimeout(done, 200))")
    assert b.run("document.querySelector('[name=n_embd]').value") == "1024" and not b.errors()


PLOT = "document.querySelector('[data-id=film]').hidden"
LIT = "document.querySelector('.code [aria-current]').textContent"


def test_the_film_of_a_step_is_played_and_scrubbed(browser, page):
    (page.parent / "assets").symlink_to(ROOT / "nbs/assets")
    with served(page.parent) as address:
        ready(browser.open(f"{address}?lora=16&use_mixed_precision=weights&activation_checkpointing=1"))
        browser.run(until("[data-id=film]:not([hidden])"))
        # the peak of the step is where it begins, with what holds the most
        assert told(browser, "here").startswith(f"The peak, backward: {told(browser, 'peak')}; ")
        alive = browser.run("[...document.querySelectorAll('[data-id=alive] li')].map(o => o.textContent)")
        assert len(alive) == 5 and any("2,048 tokens × 128,256 ids × 4 bytes" in o for o in alive), alive
        assert browser.run(LIT) == "loss.backward()"
        browser.run("document.querySelector('[data-id=scrub]').focus()")
        before = told(browser, "here")
        browser.press("ArrowLeft", "ArrowLeft", "ArrowLeft", "ArrowLeft")
        assert told(browser, "here") != before and browser.run(LIT) == "loss = model(x, y)"
        # from the beginning, where nothing is made yet, to the optimizer's step
        scrub = "document.querySelector('[data-id=scrub]')"
        set_to = f"(n => {{ {scrub}.value = n; {scrub}.dispatchEvent(new Event('input')); }})"
        browser.run(f"{set_to}(0)")
        assert told(browser, "here").startswith("between steps: 15.2 GiB")
        browser.run(f"{set_to}({scrub}.max - 3); document.querySelector('[data-id=play]').click()")
        assert told(browser, "play") == "Stop"
        browser.run(f"new Promise(done => setInterval(() => {scrub}.value === {scrub}.max && done(), 20))")
        assert browser.run(LIT) == "optimizer.step()"
        # no film was recorded of several cards, nor is one shown of what nobody trains that way
        put(browser, ranks="4")
        assert browser.run(PLOT) and told(browser, "points")
        put(browser, ranks="1")
        assert not browser.run(PLOT)
        put(browser, seq_len="0")
        assert browser.run(PLOT) and not browser.errors()


def test_calculator_fits_a_phone(browser, page):
    ready(browser.open(page, width=390))
    browser.run("document.querySelectorAll('.mt-calc details').forEach(o => o.open = true)")
    put(browser, price="2.5", tokens="1500")
    browser.run(until("[data-best]"))
    assert browser.run("document.documentElement.scrollWidth") <= 390


def test_calculator_in_the_repository_is_that_of_the_package():
    assert (ROOT / "nbs/assets/calculator.html").read_text(encoding="utf-8") == calculator(ROOT), (
        "run 'make export'"
    )
    assert asdict(Step())  # its fields are the names by which the widget asks
