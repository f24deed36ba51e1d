// What a training step holds and how long it takes, by recorded laws: what memtrain/families.py and memtrain/plan.py
// do, for the site's calculator. `data` is what tools/calculator.py takes of the package; tests/tools/test_calculator.py
// holds thousands of answers against Python's. Shapes and steps are plain objects with the fields of ModelShape and Step.
function memtrain(data) {
  const total = parts => Object.values(parts).reduce((a, b) => a + b, 0);
  const way_of = s => [
    s.weights !== 'float32' ? s.weights : s.use_mixed_precision ? 'autocast' : 'float32',
    s.lora && (s.load_in_4bit ? 'qlora' : 'lora'),
    s.parallel === 'fsdp' && !(s.offload_to_cpu && s.ranks === 1) && 'fsdp',
    s.offload_to_cpu && 'offload',
    s.activation_checkpointing && 'checkpointing',
    s.loss_chunk_size && 'chunks',
  ].filter(Boolean);

  function law_of(shape, step) {  // undefined where none was recorded
    const found = data.laws[shape.kind][[...way_of(step), ...(shape.tie_weights ? ['tied'] : [])].join(' ')];
    const more = found && (found.more || found.first);
    return found && {...found, more, at_once: found.at_once || more};
  }

  function need_law(shape, step) {
    const found = law_of(shape, step);
    if (!found) throw new Error(`${way_of(step).join(' ')}: no law of such a step was recorded for ${shape.kind}`);
    return found;
  }

  function sizes_of(s) {  // by the letters that laws call them by
    const D = s.head_size || Math.floor(s.n_embd / s.n_head), q = s.n_head * D, k = (s.n_kv_head || s.n_head) * D;
    return {L: s.n_layer, H: s.n_head, D, d: s.n_embd, q, k, u: q + 2 * k, p: s.n_head * Math.trunc(D * (s.rotary ?? 1)),
      f: s.mlp_width, V: s.vocab_size, P: s.positions || 0, S: s.masked || 0};
  }

  function evaluate(products, sizes) {  // what comes behind a w is divided among so many ranks
    const sum = Object.entries(products).reduce((sum, [letters, times]) => {
      const [whole, parted = ''] = letters.split('w');
      let n = parted ? Math.ceil(sizes[parted[0]] / sizes.w) : 1;
      for (const letter of whole + parted.slice(1)) n *= sizes[letter];
      return sum + times * n;
    }, 0);
    return Math.trunc(sum);
  }

  function count(shape, lora = 0) {  // numbers in a model, in a block, and those that are trained
    const plain = {weights: 'bfloat16', parallel: 'ddp'}, sizes = {...sizes_of(shape), r: lora};
    const weights = law_of(shape, plain).weights, gradients = law_of(shape, {...plain, lora}).gradients;
    const block = Object.fromEntries(Object.entries(weights).filter(([letters]) => letters.includes('L')));
    const numbers = (products, sizes) => Math.floor(evaluate(products, sizes) / 2);
    return {params: numbers(weights, sizes), block: numbers(block, {...sizes, L: 1}), trained: numbers(gradients, sizes)};
  }

  function optimizer_of(step) {
    const found = data.optimizers[step.weights][step.optimizer];
    if (!found) throw new Error(`${step.optimizer} doesn't update weights in ${step.weights}`);
    return found;
  }

  function states(n, {moments, number, tables}) {  // bytes; those of bitsandbytes have a scale a block, and tables
    if (!tables) return moments * number * n;
    return n < 4096 ? 4 * n * moments : moments * (n + 4 * Math.ceil(n / 256)) + 1024 * tables;
  }

  function gathered(shape, step, sizes) {  // what a law of FSDP speaks of besides
    const {weights} = need_law(shape, {...step, offload_to_cpu: false}), number = step.weights === 'bfloat16' ? 2 : 4;
    const all = (inside, adapters) => step.ranks * Math.floor(evaluate(
      Object.fromEntries(Object.entries(weights).filter(([letters]) =>
        letters.includes('w') && letters.includes('L') === inside && (letters.includes('r') || !adapters))),
      {...sizes, L: 1, w: step.ranks}) / number);
    return {w: step.ranks, g: all(true), R: all(false), a: all(true, true)};
  }

  // Where in a step a moment lies, by what is held then; `most` is what activations take at their highest. Copies of
  // all blocks' weights are autocast's, which it drops when the forward pass ends.
  function phase(held, most, copies) {
    if (held['logits and loss'] > 0) return 'the loss';
    if (copies) return 'forward ends';
    return 2 * (held.activations || 0) > most ? 'backward begins' : 'backward ends';
  }

  // What holds all through a step: the sizes that its law speaks of, and bytes of weights, gradients and states.
  function standing(shape, step) {
    const law = need_law(shape, step), tokens = step.batch_size * step.seq_len;
    const number = step.weights === 'bfloat16' ? 2 : 4, optimizer = optimizer_of(step);
    let sizes = {...sizes_of(shape), N: tokens, T: step.seq_len, c: Math.min(step.loss_chunk_size || tokens, tokens),
      r: step.lora, E: tokens > 3072 ? Math.floor(tokens / 10) + Math.min(tokens, shape.vocab_size) : 0};
    if (sizes.k === sizes.q && !data.kinds[shape.kind].scores && !data.kinds[shape.kind].masked) sizes.T = 0;
    if (step.parallel === 'fsdp') sizes = {...sizes, ...gathered(shape, step, sizes)};
    const weights = evaluate(law.weights, sizes), gradients = evaluate(law.gradients, sizes);
    const updates = Math.floor(gradients / number);
    // States that are paged can all be in RAM: a byte of each number's two moments. Their scales stay on the card.
    const paged = step.paged_optimizer ? optimizer.moments * updates : 0;
    const updated = n => optimizer.held * Math.min(data.slice, n);
    const largest = shape.n_embd * (step.lora || Math.max(shape.vocab_size, shape.mlp_width));
    return {law, sizes, number, paged, kept: step.optimizer_in_backward ? 0 : gradients,
      updated, update: updated(Math.floor(largest / (sizes.w || 1))),
      own: {weights, 'optimizer state': states(updates, optimizer) - paged}};
  }
  // Gradients of several micro-batches are added up; those of DDP lie in buckets all the while.
  const adds_up = step => step.gradient_accumulation_steps > 1 || (step.ranks > 1 && step.parallel === 'ddp');

  function predict(shape, step, card) {
    const {law, sizes, number, paged, kept, updated, update, own} = standing(shape, step);
    const held = (moments, gradients) => moments.map(moment => {
      const {update: slices = 0, ...found} = Object.fromEntries(Object.entries(moment).map(([k, v]) => [k, evaluate(v, sizes)]));
      found.gradients = (found.gradients || 0) + gradients;
      found.temporaries = (found.temporaries || 0) + updated(slices);
      found.copies = Object.keys(moment.temporaries || {}).some(letters => /^L[^N]*$/.test(letters));
      return found;
    });
    const moments = held(step.optimizer_in_backward ? law.at_once : law.first, 0);
    if (adds_up(step)) moments.push(...held(law.more, kept));
    if (kept) moments.push({gradients: kept, temporaries: update, when: "the optimizer's step"});
    const whole = ({when, copies, ...found}) => {
      const held = {...found, ...own, temporaries: (found.temporaries || 0) + 2 * card.workspace};
      const by_category = Object.fromEntries(data.categories.map(k => [k, held[k] || 0]));
      return {when: when || phase(found, most, copies), by_category, peak: total(by_category)};
    };
    const most = Math.max(...moments.map(o => o.activations || 0));
    const high = moments.map(whole), best = high.reduce((a, b) => b.peak > a.peak ? b : a);
    const {params, trained} = count(shape, step.lora), all = params + (step.lora ? trained : 0);
    const host = step.offload_to_cpu ? number * (all + 3 * trained) : paged;
    return {peak: best.peak, by_category: best.by_category, high, params: all, trained, host};
  }

  // --- the film of a step ---
  const WHOLE_COPIES = ['clone', 'new_empty_strided'];  // of a gradient; later ones are added where they lie
  // What a film's moments make and free, in their order, by the numbers of its tensors, for so many further blocks.
  function unroll({passes}, parts, further) {
    const read = (text, phase) => {
      const numbers = [...text.matchAll(/([-+]?)(\d+)/g)].map(([, sign, n]) => [sign, Number(n)]);
      const of = sign => numbers.filter(o => o[0] === sign).map(o => o[1]);
      return {phase, made: of('')[0], freed: [...of('-'), ...Array(further).fill(of('+')).flat()]};
    };
    return passes.flatMap((three, i) => three.flatMap((part, j) => {
      const moments = parts[part].split(' ').map(text => read(text, ['forward', 'backward'][i]));
      return Array(j === 1 ? further : 1).fill(moments).flat();
    }));
  }

  // Each moment of a step from what benchmarks/films.py recorded of its kind of model: the phase, the tensor that is
  // made, and bytes by category; of several micro-batches the last one. `alive` says how many of which tensors are
  // held at a moment. Null where no such step was recorded. A loss in chunks is played as in the film, in seven.
  function play(recorded, shape, step, card) {
    const film = recorded.films[[...way_of(step), ...(shape.tie_weights ? ['tied'] : [])].join(' ')];
    if (!film || shape.n_layer < film.blocks) return null;
    const {sizes, kept, updated, update, own} = standing(shape, step), more = adds_up(step), at_once = step.optimizer_in_backward;
    const tensors = recorded.tensors.map(([named, phase, op, module, letters, times]) => {
      // scores of T × T go where no heads share keys, and with them the T of `sizes`; rows of positions stay
      const known = letters.includes('N') ? sizes : {...sizes, T: step.seq_len};
      const numbers = evaluate({[letters]: times}, known), gradient = named === 'gradients', updates = named === 'update';
      const category = updates ? 'temporaries' : gradient && more ? (phase === 'forward' ? 'activations' : 'temporaries') : named;
      const left_out = updates ? !at_once : gradient && more && WHOLE_COPIES.includes(op);
      return {op, module, letters, times, category, bytes: left_out ? 0 : updates ? updated(numbers) : numbers,
        stays: gradient && !more && !at_once};
    });
    const unrolled = unroll(film, recorded.parts, shape.n_layer - film.blocks), place = k => data.categories.indexOf(k);
    const held = data.categories.map(k => own[k] || 0);
    held[place('temporaries')] = 2 * card.workspace;
    const between = [...held], moments = [{phase: 'between steps', held: between}];
    if (more) held[place('gradients')] += kept;
    const free = t => { if (!t.stays) held[place(t.category)] -= t.bytes; };
    unrolled.forEach(({phase, made, freed}, at) => {
      const tensor = tensors[made];
      if (tensor) held[place(tensor.category)] += tensor.bytes;
      if (tensor && tensor.bytes) moments.push({phase, tensor, at, held: [...held]});
      freed.forEach(n => free(tensors[n]));
    });
    const last = [...between];
    last[place('gradients')] += kept;
    last[place('temporaries')] += update;
    if (kept) moments.push({phase: 'optimizer', held: last});
    const alive = ({at = -1}) => {
      const counts = tensors.map(() => 0);
      unrolled.slice(0, at + 1).forEach(({made, freed}, i) => {
        if (made !== undefined) counts[made]++;
        if (i < at) freed.forEach(n => { if (!tensors[n].stays) counts[n]--; });
      });
      return tensors.map((tensor, i) => ({...tensor, count: counts[i], total: counts[i] * tensor.bytes})).filter(o => o.total > 0);
    };
    return {moments, alive, sizes};
  }

  // --- sampling ---
  // Bytes of the tensors that a law of sampling lists: {letters and bytes a number: [how many, how many more a block]}.
  function add_tensors(law, sizes, rounded = n => 512 * Math.ceil(n / 512)) {
    return Object.entries(law).reduce((sum, [name, [once, more]]) => {
      const [letters, times] = name.split(' ');
      const bytes = [...letters].reduce((n, letter) => n * sizes[letter], Number(times));
      return sum + (once + more * sizes.L) * rounded(Math.floor(bytes));
    }, 0);
  }

  // What a model holds that reads `seq_len` tokens less two, and writes those, of so many texts at a time.
  function sample(shape, weights, batch_size, seq_len, card) {
    const laws = data.sampling[shape.kind] || {}, way = weights + (shape.tie_weights ? ' tied' : '');
    const law = (shape.n_kv_head || shape.n_head) === shape.n_head && laws[`${way} each`] || laws[way];
    if (!law) throw new Error(`No law of sampling was recorded for ${shape.kind}: the line below simulates it`);
    if (seq_len < 4) throw new Error('Give the text 4 tokens or more');
    const sizes = {...sizes_of(shape), h: shape.n_kv_head || shape.n_head, B: batch_size, T: seq_len, m: seq_len - 1, n: seq_len - 2, W: card.workspace};
    const held = add_tensors(law.weights, sizes), exact = n => n;
    const most = moments => held + Math.max(...moments.map(o => add_tensors(o, sizes)));
    const found = {weights: held, cache: add_tensors(law.cache, sizes), reading: most(law.reading), writing: most(law.writing),
      growth: add_tensors(law.cache, sizes, exact) - add_tensors(law.before, sizes, exact)};
    return {...found, peak: Math.max(found.reading, found.writing)};
  }

  // --- time ---
  function move_activations(shape, step) {  // bytes between products, of a token in a block's forward pass
    const {d, q, k, f} = {...sizes_of(shape), d: shape.n_embd}, known = data.kinds[shape.kind], gpt2 = known.like_gpt2;
    const stream = step.weights === 'bfloat16' ? 2 : 4, inner = step.use_mixed_precision ? 2 : stream;
    const norm = (gpt2 ? 2 * stream : stream === 4 ? 28 : 34) + (stream === inner ? 0 : stream + inner);
    const rotary = !gpt2 || shape.kind === 'gpt_neox';
    const scores = known.scores ? data.score_bytes * shape.n_head * step.seq_len : 0;
    let bytes = scores + known.norms * d * norm + 2 * d * (2 * stream + inner) + inner * (2 + 10 * rotary) * (q + k) + inner * f * (gpt2 ? 2 : 5);
    if (step.lora)
      for (const [into, out] of [[d, q], [d, k], [d, k], [q, d], [f, d], [d, f], ...(gpt2 ? [] : [[d, f]])])
        bytes += inner * (into + 3 * out);
    return bytes;
  }

  function seconds(shape, step, card) {
    const half = step.weights === 'bfloat16', number = half ? 2 : 4, fsdp = step.parallel === 'fsdp';
    const passes = step.gradient_accumulation_steps, tokens = step.batch_size * passes * step.seq_len;
    const again = +step.activation_checkpointing, frozen = step.lora > 0, {params, trained, block} = count(shape, step.lora);
    const blocks = 2 * shape.n_layer * block, rate = step.use_mixed_precision || half ? card.bf16 : card.fp32;
    const products = (frozen ? 2 : 3) * (blocks + 2 * shape.vocab_size * shape.n_embd) + again * blocks;
    const scores = 4 * shape.n_layer * sizes_of(shape).q * step.seq_len;
    const computing = tokens * (products + (3.5 + again) * scores / 2 / data.attention) / rate / card.reached;
    const chunks = step.loss_chunk_size ? Math.ceil(tokens / step.loss_chunk_size) : 0;
    const optimizer = optimizer_of(step), mine = fsdp ? trained / step.ranks : trained;
    const moved = tokens * shape.n_layer * (3 + again) * move_activations(shape, step)
      + shape.vocab_size * (data.logit_bytes * tokens + 12 * chunks * shape.n_embd)
      + mine * (optimizer.moved * !step.offload_to_cpu + 3 * number * (passes - 1))
      + params * passes * (6 * step.use_mixed_precision + (10 + 5 * again) * step.load_in_4bit);
    const of_block = data.blocks[shape.kind], adapters = data.adapter_launches * of_block.matrices * frozen;
    const kernels = shape.n_layer * (of_block.kernels + adapters) * (1 + .3 * again) + 50;
    const tensors = shape.n_layer * (frozen ? 2 * of_block.matrices : of_block.tensors);
    const updates = optimizer.kernels * (tensors + mine / data.slice) * !step.offload_to_cpu;
    const gathered = passes * (2 * (step.load_in_4bit ? .5 : number) * params + number * trained);
    const sending = (1 - 1 / step.ranks) * (fsdp ? gathered : 2 * number * trained) / card.link;
    const offloading = step.offload_to_cpu ? gathered / step.ranks / card.bus
      + trained / step.ranks * optimizer.moved_on_host / data.host / data.reached : 0;
    return Math.max(computing + moved / card.bandwidth / data.memory, sending)
      + (passes * kernels + 20 * chunks + updates) * data.launch + offloading;
  }

  // --- plans ---
  function list_steps(batch, seq_len, ranks, lora, load_in_4bit) {
    if (batch % ranks) throw new Error(`${batch} windows are not a multiple of ${ranks} cards`);
    const share = batch / ranks, found = [], either = on => on ? [false, true] : [false];
    const ways = [['ddp', false], ...(ranks > 1 ? [['fsdp', false]] : []), ...(load_in_4bit ? [] : [['fsdp', true]])];
    for (let micro = 1; micro <= share; micro++) if (share % micro === 0)
      for (const half of [false, true])
      for (const autocast of either(!half))
      for (const small of either(!half && !lora))
      for (const again of [false, true])
      for (const chunk of [null, ...[4096, 1024, 256].filter(n => n < micro * seq_len)])
      for (const at_once of either(micro === share && ranks === 1 && !lora))
      for (const [parallel, offload] of ways) {
        if ((lora && !half && !autocast) || (parallel === 'fsdp' && (small || at_once)) || (offload && !(again && chunk)))
          continue;
        found.push({batch_size: micro, seq_len, gradient_accumulation_steps: share / micro, use_mixed_precision: autocast,
          optimizer: small ? 'adamw8bit' : 'adamw', activation_checkpointing: again, loss_chunk_size: chunk,
          weights: half ? 'bfloat16' : 'float32', optimizer_in_backward: at_once, lora, load_in_4bit, ranks, parallel,
          offload_to_cpu: offload});
      }
    return found;
  }

  const techniques = s => Object.entries({mixed_precision: s.use_mixed_precision, '8bit_optimizer': s.optimizer.endsWith('8bit'),
    activation_checkpointing: s.activation_checkpointing, loss_chunks: s.loss_chunk_size, bf16_weights: s.weights === 'bfloat16',
    optimizer_in_backward: s.optimizer_in_backward, fsdp: s.parallel === 'fsdp', offload: s.offload_to_cpu})
    .filter(o => o[1]).map(o => o[0]);

  function flags(s) {  // for `memtrain train`
    const on = {mixed_precision: '--use_mixed_precision', '8bit_optimizer': '--use_8bit_optimizer',
      activation_checkpointing: '--activation_checkpointing', loss_chunks: `--loss_chunk_size ${s.loss_chunk_size}`,
      bf16_weights: '--weights bfloat16', optimizer_in_backward: '--optimizer_in_backward --grad_clip 0',
      fsdp: '--parallel fsdp', offload: '--offload_to_cpu'};
    return [`--batch_size ${s.batch_size}`, `--gradient_accumulation_steps ${s.gradient_accumulation_steps}`,
      `--seq_len ${s.seq_len}`, ...(s.lora ? [`--lora ${s.lora}`] : []), ...(s.load_in_4bit ? ['--load_in_4bit'] : []),
      ...techniques(s).map(name => on[name]), ...(s.paged_optimizer ? ['--paged_optimizer'] : [])];
  }

  // The options that fit, the cheapest first, and the closest of all that were tried.
  function plan(shape, card, budget, batch, seq_len, {ranks = 1, lora = 0, load_in_4bit = false} = {}) {
    const found = list_steps(batch, seq_len, ranks, lora, load_in_4bit).filter(s => law_of(shape, s)).map(step =>
      ({step, peak: predict(shape, step, card).peak, seconds: seconds(shape, step, card), techniques: techniques(step)}));
    const rounding = ['mixed_precision', '8bit_optimizer', 'bf16_weights'], best = [];
    const price = o => [o.seconds, +o.step.activation_checkpointing, o.techniques.length, -o.step.batch_size];
    const order = (a, b) => { a = price(a); b = price(b); const i = a.findIndex((x, i) => x !== b[i]); return i < 0 ? 0 : a[i] - b[i]; };
    for (const o of found.filter(o => o.peak <= budget).sort(order)) {
      const same = best.some(k => k.techniques.join() === o.techniques.join());
      const better = best.some(k => .99 * k.peak <= o.peak
        && k.techniques.every(name => o.techniques.includes(name) || !rounding.includes(name)));
      const paid = o.step.offload_to_cpu && best.some(k => !k.step.offload_to_cpu);
      if (!same && !better && !paid) best.push(o);
    }
    best.sort((a, b) => a.step.offload_to_cpu - b.step.offload_to_cpu);
    return {options: best, closest: found.reduce((a, b) => b.peak < a.peak ? b : a)};
  }

  // What is left to train the whole model on one card: a window at a time in bfloat16, with 8-bit states that go to
  // RAM where the card is full. How long that takes depends on how many do.
  function page(shape, card, seq_len) {
    const step = {batch_size: 1, seq_len, gradient_accumulation_steps: 1, use_mixed_precision: false, optimizer: 'adamw8bit',
      activation_checkpointing: true, loss_chunk_size: 1024, weights: 'bfloat16', optimizer_in_backward: true, lora: 0,
      load_in_4bit: false, ranks: 1, parallel: 'ddp', offload_to_cpu: false, paged_optimizer: true};
    if (!law_of(shape, step)) return null;
    const {peak, host} = predict(shape, step, card);
    return {step, peak, host};
  }

  // --- models ---
  function masks_in(config) {  // the blocks that look at near tokens alone
    if (config.layer_types) return config.layer_types.filter(type => type === 'sliding_attention').length;
    return config.num_hidden_layers - Math.floor(config.num_hidden_layers / (config.sliding_window_pattern || 6));
  }

  const has_window = config => !!config.sliding_window && config.use_sliding_window !== false;

  function read_model(config, seq_len, name = 'FOLDER') {  // of a config.json, as transformers writes it
    const kind = data.like[config.model_type] || config.model_type;
    if (!data.laws[kind]) throw new Error(`is of the type '${kind}', whose law was not recorded: simulate it`);
    const get = (names, other = null) => names.map(n => config[n]).find(x => x !== undefined && x !== null) ?? other;
    const width = get(['hidden_size', 'n_embd']), heads = get(['num_attention_heads', 'n_head']);
    const most = get(['max_position_embeddings', 'n_positions'], 4096), gpt2 = kind === 'gpt2';
    const near = get(['use_sliding_window'], true) && get(['sliding_window']);
    if (seq_len > most) throw new Error(`${seq_len} tokens are more than the ${most} positions of ${name}`);
    const masked = data.kinds[kind].masked ? masks_in(config) : 0;
    const usual_len = Math.min(most, 4096, masked ? 4096 : Math.floor(((near || 2 ** 30) - 1) / 256) * 256);
    if ((near > 0 && (seq_len || usual_len) >= near) !== masked > 0)
      throw new Error(`${name} has a sliding window of ${near} tokens, and no law knows a step of ${seq_len}`);
    const drops = new Set(['resid_pdrop', 'embd_pdrop', 'attn_pdrop'].map(k => get([k], .1)));
    const turned = get(['rope_parameters'], {}).partial_rotary_factor ?? (kind === 'gpt_neox' ? .25 : 1);
    const rotary = get(['rotary_pct', 'partial_rotary_factor'], turned);
    const recorded = data.kinds[kind].fields;
    const other = [...Object.keys(recorded).filter(k => k in config && config[k] !== recorded[k]),
      ...(rotary !== 1 && kind !== 'gpt_neox' ? ['partial_rotary_factor'] : []),
      ...(gpt2 && drops.has(0) && drops.size > 1 ? ['resid_pdrop'] : [])];
    if (other.length) throw new Error(`${name} has another ${other[0]} than the models whose law was recorded: simulate it`);
    return {kind: gpt2 && drops.has(0) ? 'gpt2_plain' : kind, n_layer: get(['num_hidden_layers', 'n_layer']), n_head: heads,
      n_embd: width, mlp_width: get(['intermediate_size', 'n_inner'], 4 * width), vocab_size: config.vocab_size,
      block_size: seq_len || usual_len, masked,
      n_kv_head: get(['num_key_value_heads'], heads), head_size: get(['head_dim']), positions: gpt2 ? most : 0,
      tie_weights: get(['tie_word_embeddings'], data.kinds[kind].tied), rotary, name};
  }

  // A card of so many bytes, priced as the known one that has nearly as many.
  function sized(memory) {
    const far = ([, card]) => Math.abs(card.memory - memory);
    const [sheet, card] = Object.entries(data.cards).reduce((a, b) => far(b) < far(a) ? b : a);
    return {...card, ...data.other_card, memory, sheet};
  }

  // --- an out-of-memory message ---
  const UNITS = {bytes: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30}, SEGMENT = 2 ** 21;
  // How each number has been called; memtrain/explain.py has all of them. # stands for the number.
  const SAID = {asked: 'Tried to allocate #', total: 'total capaci?ty of #|# total capacity', free: 'of which # is free|# free;',
    allocated: 'memory # is allocated by PyTorch|# already allocated', unallocated: '# is reserved by PyTorch but unallocated'};

  function read_error(text) {  // {asked, total, free, allocated, unallocated}, each in bytes with half of the last digit printed
    const found = {}, size = '([\\d.]+) (bytes|KiB|MiB|GiB)';
    for (const [name, words] of Object.entries(SAID)) {
      const m = text.match(words.replaceAll('#', size).replaceAll(/\s+/g, '\\s+'));
      const [digits, unit] = m ? m.slice(1).filter(Boolean) : [];
      if (digits) found[name] = {size: Number(digits) * UNITS[unit], error: .5 * 10 ** -(digits.split('.')[1] || '').length * UNITS[unit]};
    }
    const others = text.matchAll(new RegExp(`Process \\d+ has ${size} memory in use`, 'g'));
    found.others = [...others].reduce((n, m) => n + m[1] * UNITS[m[2]], 0);
    if (!found.asked || !found.total) throw new Error("Paste PyTorch's message from 'Tried to allocate' on");
    return found;
  }

  // Tensors of a step of `shape` that ask for a segment of the size `asked`: what they are, and which change makes them smaller.
  function tensors_of(asked, shape, seq_len) {
    const {d, f, h = shape.n_head} = {d: shape.n_embd, f: shape.mlp_width}, V = shape.vocab_size, found = [];
    // A tensor of more than 10 MiB gets a segment of its own, rounded up to 2 MiB.
    const fits = bytes => bytes > 10 * 2 ** 20 && Math.abs(Math.ceil(bytes / SEGMENT) * SEGMENT - asked.size) <= asked.error;
    const n = x => x.toLocaleString('en'), kinds = [['float32', 4], ['bfloat16', 2]];
    const windows = [...new Set([seq_len, ...Array.from({length: 12}, (_, i) => 2 ** (7 + i))])];
    for (const [type, bytes] of kinds) {
      for (const [cure, name, width] of [['logits', 'logits', V], ['activations', 'numbers inside the MLP', f], ['activations', 'numbers of a layer', d]])
        for (let count = 1; count <= 512; count *= 2)  // windows at a time
          for (const T of windows)
            if (fits(count * T * width * bytes))
              found.push({cure, usual: T === seq_len, tokens: count * T, text: `${n(count * T)} tokens × ${n(width)} ${name}, in ${type}`});
      for (let count = 1; count <= 512; count *= 2)
        for (const T of windows)
          if (fits(count * h * T * T * bytes))
            found.push({cure: 'scores', usual: T === seq_len, tokens: count * T, text: `attention's scores, ${count} × ${h} heads × ${n(T)} × ${n(T)}, in ${type}`});
      for (const [name, rows, columns] of [['embedding', V, d], ["MLP's matrix", f, d]])
        if (fits(rows * columns * bytes))
          found.push({cure: 'weights', usual: false, tokens: 0, text: `the ${n(rows)} × ${n(columns)} ${name}, its gradient or a moment of it, in ${type}`});
    }
    const first = found.filter((o, i) => found.findIndex(p => p.text === o.text) === i);
    return first.sort((a, b) => b.usual - a.usual || a.tokens - b.tokens);
  }

  // --- words ---
  function format_size(n) {
    let size = Math.abs(n), i = 0;
    for (; size >= 1024 && i < 5; i++) size /= 1024;
    const digits = i === 0 || size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2;
    return `${n < 0 ? '-' : ''}${size.toFixed(digits)} ${['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'][i]}`;
  }

  function format_count(n) {
    const [power, unit] = [[12, 'T'], [9, 'B'], [6, 'M'], [3, 'k'], [0, '']].find(o => !o[0] || n >= .9995 * 10 ** o[0]);
    return Number((n / 10 ** power).toPrecision(3)) + unit;
  }

  return {read_error, tensors_of, law_of, count, states, optimizer_of, predict, play, sample, has_window, seconds, plan, page, techniques, flags, read_model, sized, format_size, format_count};
}
