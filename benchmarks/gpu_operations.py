"""The operations of linkedin/Liger-Kernel's published benchmark, as plain PyTorch: what `gpu_published.py`
predicts.

Each function takes the setting of a row and gives what lies on the card while it runs (modules and
tensors), the forward pass, and the backward pass of its result. The figures are facts of the benchmark's
table (gpu_operations.json), one entry a sweep: operation, what was run, card, date, and bytes by size."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

HALF = torch.bfloat16


def draw(*shape, dtype=torch.float32, grad=True):
    return torch.randn(*shape, dtype=dtype, requires_grad=grad)


def head(width, vocab, bias=False):
    return nn.Linear(width, vocab, bias=bias, dtype=HALF)


def random_gradient(y):
    y.backward(torch.randn_like(y), retain_graph=True)


def scalar(y):
    y.backward()


def kept_scalar(y):
    y.backward(retain_graph=True)


def given(dy):
    return lambda y: y.backward(dy, retain_graph=True)


# --- layers: normalisation, positions, gates, softmax ------------------------------------------


def mlp(x, inner, act):
    width = x.shape[-1]
    gate, up, down = (
        nn.Linear(*shape, bias=False, dtype=HALF)
        for shape in ((width, inner), (width, inner), (inner, width))
    )
    return [x, gate, up, down], lambda: down(act(gate(x)) * up(x)), random_gradient


def geglu(T, bsz, hidden_size, intermediate_size, **_):
    return mlp(draw(bsz, T, hidden_size, dtype=HALF), intermediate_size, nn.GELU(approximate='tanh'))


def swiglu(T, bsz, hidden_size, intermediate_size, **_):
    return mlp(draw(bsz, T, hidden_size, dtype=HALF), intermediate_size, F.silu)


def norm(make, *shape):
    x, layer = draw(*shape), make()
    # the competitor's layer lies there too
    return [x, layer, make()], lambda: layer(x), given(torch.randn_like(x))


def layer_norm(N, M, eps, **_):
    return norm(lambda: nn.LayerNorm(N, eps=eps), M, N)


def group_norm(C, M, H, channels_per_group, eps, **_):
    return norm(lambda: nn.GroupNorm(C // channels_per_group, C, eps=eps), M, C, H)


def rms(x, weight, eps, dtype):
    variance = x.pow(2).mean(-1, keepdim=True)
    x = x * torch.rsqrt(variance + eps)
    return weight * x.to(dtype)


def rms_norm(H, M, eps, **_):
    x, weight, other = draw(M, H, dtype=HALF), nn.Parameter(torch.ones(H)), nn.Parameter(torch.ones(H))
    return [x, weight, other], lambda: rms(x.float(), weight, eps, HALF), given(torch.randn_like(x))


def fused_add_rms_norm(H, M, eps, **_):
    x, r, (weight, *others) = draw(M, H), draw(M, H), (nn.Parameter(torch.ones(H)) for _ in range(3))
    gradients = torch.randn_like(x), torch.randn_like(r)

    def forward():
        both = x + r
        return rms(both, weight, eps, torch.float32), both

    return [x, r, weight, *others], forward, lambda pair: torch.autograd.backward(pair, gradients)


def megatron_rms_norm(H, S, B):
    x, layer = draw(S, B, H, dtype=HALF), nn.RMSNorm(H, eps=1e-6).to(HALF)
    return [x, layer], lambda: layer(x), lambda y: y.sum().backward()


def megatron_swiglu(ffn_local, S, B):
    x = draw(S, B, 2 * ffn_local, dtype=HALF)

    def forward():
        x.grad = None
        a, b = torch.chunk(x, 2, -1)
        return F.silu(a) * b

    return [x], forward, lambda y: y.sum().backward()


def heads(seq_len, hidden_size, num_q_heads, num_kv_heads):
    return (draw(1, seq_len, n, hidden_size // num_q_heads, dtype=HALF) for n in (num_q_heads, num_kv_heads))


def gradients_of(q, k, outer):
    dq, dk = torch.randn_like(q), torch.randn_like(k)
    return lambda pair: torch.autograd.grad(pair, (q, k), (dq, dk), retain_graph=True)


def rope(num_q_heads, num_kv_heads, T=None, H=None, seq_len=None, hidden_size=None, **_):
    T, H = T or seq_len, H or hidden_size
    kept = q, k = [*heads(T, H, num_q_heads, num_kv_heads)]
    q, k = q.transpose(1, 2), k.transpose(1, 2)
    width = H // num_q_heads
    rates, places = 1.0 / 10000 ** (torch.arange(0, width, 2) / width), torch.arange(T)[None]
    angles = (rates[None, :, None] @ places[:, None].float()).transpose(1, 2)
    cos, sin = (f(torch.cat((angles, angles), -1)).to(HALF).detach() for f in (torch.cos, torch.sin))

    def turn(x, c, s):
        def swapped():
            a, b = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
            return torch.cat((-b, a), -1)

        return x * c + swapped() * s

    def forward():
        c, s = cos.unsqueeze(1), sin.unsqueeze(1)
        return turn(q, c, s), turn(k, c, s)

    del angles
    return [*kept, rates, places, cos, sin], forward, gradients_of(q, k, kept)


def llama4_rope(num_q_heads, num_kv_heads, T=None, H=None, seq_len=None, hidden_size=None, **_):
    T, H = T or seq_len, H or hidden_size
    q, k = heads(T, H, num_q_heads, num_kv_heads)
    width = H // num_q_heads
    rates, places = 1.0 / 10000 ** (torch.arange(0, width, 2) / width), torch.arange(T)[None]
    angles = (rates[None, :, None] @ places[:, None].float()).transpose(1, 2)
    table = torch.polar(torch.ones_like(angles), angles)
    del angles

    def pairs(x):
        return torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))

    def turn(x):
        return torch.view_as_real(x * table[:, :, None]).flatten(3)

    def forward():
        a, b = pairs(q), pairs(k)
        c, d = turn(a), turn(b)
        return c.type_as(q), d.type_as(k)

    return [q, k, rates, places, table], forward, gradients_of(q, k, (q, k))


def softmax(N, dtype, **_):  # of one row: the benchmark's size is the whole shape
    x = draw(N, dtype=getattr(torch, dtype.split('.')[1]))
    return [x], lambda: torch.softmax(x, -1), lambda y: y.backward(torch.ones_like(y), retain_graph=True)


def relu_squared(N, **_):
    x = draw(N, dtype=HALF)
    return [x], lambda: torch.square(F.relu(x)), lambda y: y.backward(torch.ones_like(y), retain_graph=True)


def sparsemax(V, B, T, **_):
    x = draw(B * T, V)

    def forward():
        ordered, _ = torch.sort(x, dim=-1, descending=True)
        sums = torch.cumsum(ordered, dim=-1)
        ranks = torch.arange(1, V + 1, device=x.device, dtype=x.dtype).view(1, V)
        bound = 1 + ranks * ordered
        support = bound > sums
        k = support.sum(-1, keepdim=True).clamp(min=1)
        total = (ordered * support).sum(-1, keepdim=True)
        tau = (total - 1) / k
        return torch.clamp(x - tau, min=0)

    return [x], forward, given(torch.randn_like(x))


# --- attention ----------------------------------------------------------------------------------


def fused_neighborhood_attention(seq_len, batch_size, hidden_size, num_heads, **_):
    x, (q, k, v, out, *others) = (
        draw(batch_size, seq_len, hidden_size),
        (nn.Linear(hidden_size, hidden_size) for _ in range(8)),
    )

    def split(y):
        return y.view(batch_size, seq_len, num_heads, -1).transpose(1, 2)

    def forward():
        query, key, value = q(x), k(x), v(x)
        query, key, value = split(query), split(key), split(value)
        scores = torch.matmul(query, key.transpose(-2, -1)) * (hidden_size // num_heads) ** -0.5
        near = torch.zeros(seq_len, seq_len, dtype=torch.bool, device=x.device)
        scores = scores.masked_fill(~near, -math.inf)
        weights = torch.softmax(scores, dim=-1)
        y = torch.matmul(weights, value)
        y = y.transpose(1, 2).contiguous().view(batch_size, seq_len, hidden_size)
        return out(y)

    return [x, q, k, v, out, *others], forward, given(torch.randn_like(x))


def kernel_of(C_in, C_out, K, dtype):  # that of the competitor lies there too
    return [nn.Parameter(torch.empty(*shape, dtype=dtype)) for shape in ((C_out, C_in, K, K), (C_out,)) * 2]


def multi_token_attention(L, B, C_in, C_out, K, **_):
    weight, bias, *others = kernel_of(C_in, C_out, K, HALF)
    x = draw(B, C_in, L, L, dtype=HALF)

    def forward():
        mask = torch.tril(torch.ones(L, L, dtype=torch.bool, device=x.device)).view(1, 1, L, L)
        least, zero = (torch.tensor(n, device=x.device, dtype=x.dtype) for n in (-1e9, 0.0))
        masked = x.masked_fill(~mask, least)
        p = F.softmax(masked, dim=-1)
        y = F.conv2d(p, weight, bias, padding=K // 2)
        return y.masked_fill(~mask, zero)

    return [x, weight, bias, *others], forward, given(torch.randn_like(x))


def sparse_multi_token_attention(L, B, C_in, C_out, K, **_):
    weight, bias, *others = kernel_of(C_in, C_out, K, torch.float32)
    x = draw(B, C_in, L, L)

    def forward():
        mask = torch.tril(torch.ones(L, L, dtype=torch.bool, device=x.device)).view(1, 1, L, L)
        least, zero = (torch.tensor(n, device=x.device) for n in (-1e9, 0.0))
        z = x.masked_fill(~mask, least)
        ordered, _ = torch.sort(z, dim=-1, descending=True)
        sums = torch.cumsum(ordered, dim=-1)
        ranks = torch.arange(1, L + 1, device=x.device, dtype=z.dtype).view(1, 1, 1, L)
        positive = ordered > -1e8
        support = (1 + ranks * ordered > sums) & positive
        k = torch.sum(support, dim=-1, keepdim=True)
        safe = torch.max(k, torch.ones_like(k))
        picked = torch.gather(sums, dim=-1, index=safe.long() - 1)
        tau = (picked - 1) / safe.to(z.dtype)
        tau = torch.where(k == 0, torch.full_like(tau, math.inf), tau)
        p = torch.clamp(z - tau, min=0)
        y = F.conv2d(p, weight, bias, padding=K // 2)
        return y.masked_fill(~mask, zero)

    return [x, weight, bias, *others], forward, given(torch.randn_like(x))


# --- experts: their load depends on random numbers, so all get the same here --------------------


def fused_moe(H, intermediate_dim, K, T=None, E=None, **_):
    x, inner = draw(T, H, dtype=HALF), intermediate_dim
    wide, narrow = (draw(*shape, dtype=HALF) for shape in ((E, 2 * inner, H), (E, H, inner)))
    scaled = wide * 0.02, narrow * 0.02
    logits = torch.randn(T, E)
    index = torch.topk(logits, K, dim=-1).indices.to(torch.int32)
    shares = torch.softmax(torch.gather(logits, 1, index.long()), dim=-1).to(HALF).requires_grad_()

    def forward():
        final = torch.zeros_like(x)
        mask = F.one_hot(index.long(), num_classes=E).permute(2, 1, 0)
        hit = torch.arange(E, device=mask.device)[:, None]
        for e in range(len(hit)):
            place, tokens = (torch.empty(T * K // E, dtype=torch.long, device=x.device) for _ in range(2))
            y = x[tokens]
            gate, up = F.linear(y, scaled[0][e]).chunk(2, dim=-1)
            y = F.silu(gate) * up
            y = F.linear(y, scaled[1][e])
            y = y * shares[tokens, place, None]
            final.index_add_(0, tokens, y.to(final.dtype))
        return final

    return [x, wide, narrow, *scaled, index, shares], forward, random_gradient


# --- losses over a vocabulary ----------------------------------------------------------------------


def kl_div(V, B, T):
    logs, target = draw(B * T, V).log_softmax(-1), torch.randn(B * T, V).softmax(-1)
    return [logs, target], lambda: F.kl_div(logs, target, reduction='batchmean'), kept_scalar


def tvd(V, B, T):
    p, q = draw(B * T, V).softmax(-1), torch.randn(B * T, V).softmax(-1)

    def forward():
        distance = torch.abs(p - q) / 2.0
        return torch.sum(distance) / p.size(0)

    return [p, q], forward, kept_scalar


def kl(a, b):
    return F.kl_div(a, b, reduction='batchmean', log_target=True)


def js_divergence(logs, target):
    m = torch.lerp(torch.exp(target), torch.exp(logs), 0.5)
    return 0.5 * kl(torch.log(m), target) + 0.5 * kl(torch.log(m), logs)


def two_distributions(n, V):
    return draw(n, V).log_softmax(-1), torch.randn(n, V).log_softmax(-1)


def jsd(V, B, T):
    logs, target = two_distributions(B * T, V)
    return [logs, target], lambda: js_divergence(logs, target), kept_scalar


def jsd_first(V, B, T):  # as the benchmark had it at first
    logs, target = two_distributions(B * T, V)

    def forward():
        m = 0.5 * (torch.exp(logs) + torch.exp(target))
        m = torch.log(m)
        return 0.5 * (kl(m, logs) + kl(m, target))

    return [logs, target], forward, kept_scalar


def jsd_by_row(BT, vocab_size, **_):  # as it has it now
    logs, target = two_distributions(BT, vocab_size)

    def forward():
        m = torch.lerp(torch.exp(logs), torch.exp(target), 0.5)

        def rows(t):
            return F.kl_div(torch.log(m), t, reduction='none', log_target=True).sum(-1)

        loss = 0.5 * rows(target) + 0.5 * rows(logs)
        return (loss / logs.shape[0]).sum()

    return [logs, target], forward, random_gradient


def fused_linear_jsd(BT, H, V, **_):
    student, teacher = head(H, V), head(H, V)
    x, y = draw(BT, H, dtype=HALF), draw(BT, H, dtype=HALF, grad=False)

    def forward():
        logits, target = student(x), teacher(y)
        p = torch.log_softmax(logits / 1.0, -1)
        q = torch.log_softmax(target / 1.0, -1)

        def loss(p, q):
            q, p = q.float(), p.float()
            m = torch.lerp(torch.exp(q), torch.exp(p), 0.5)
            return (0.5 * kl(torch.log(m), q) + 0.5 * kl(torch.log(m), p)).to(HALF)

        return loss(p, q)

    return [student, teacher, x, y], forward, scalar


def fused_linear_cross_entropy(BT, H, V, **_):
    lin, other = head(H, V), head(H, V)
    x, target = draw(BT, H, dtype=HALF), torch.randint(V, (BT, 1)).squeeze(1)

    def forward():
        logits = lin(x)
        return F.cross_entropy(logits, target)

    return [lin, other, x, target], forward, scalar


def megatron_cross_entropy(V, S, B):
    logits, target = draw(S, B, V, dtype=HALF), torch.randint(V, (S, B))
    return (
        [logits, target],
        lambda: F.cross_entropy(logits.reshape(-1, V).float(), target.reshape(-1), reduction='none').reshape(
            S, B
        ),
        lambda y: y.sum().backward(),
    )


def log_probabilities(logits, labels):
    mask = labels != -100
    labels = torch.where(labels == -100, 0, labels)
    picked = torch.gather(logits.log_softmax(-1), dim=2, index=labels.unsqueeze(2)).squeeze(2)
    return (picked * mask).sum(-1) / mask.sum(-1)


def preference(loss):
    "The chosen half of a batch against the rejected half, by `loss` of their log probabilities"

    def make(B, T, H, V, **_):
        lin, other = head(H, V), head(H, V)
        x, target = draw(B, T, H, dtype=HALF), torch.randint(V, (B, T))

        def forward():
            outputs = x @ lin.weight.t()
            logits = outputs.float()
            likelihood = F.cross_entropy(logits[: B // 2].view(-1, V), target[: B // 2].view(-1))
            logps = log_probabilities(logits, target)
            del outputs
            return likelihood - loss(logps[: B // 2], logps[B // 2 :]).mean()

        return [lin, other, x, target], forward, scalar

    return make


fused_linear_orpo_loss = preference(
    lambda a, b: 0.1 * F.logsigmoid(a - b - (torch.log1p(-torch.exp(a)) - torch.log1p(-torch.exp(b))))
)
fused_linear_cpo_loss = preference(
    lambda a, b: F.logsigmoid(0.1 * (a - b)) * 1.0 + F.logsigmoid(-0.1 * (a - b)) * 0.0
)
fused_linear_simpo_loss = preference(
    lambda a, b: F.logsigmoid(0.1 * (a - b - 5.0)) * 1.0 + F.logsigmoid(-0.1 * (a - b - 5.0)) * 0.0
)


def kto_loss(B, T, H, V, **_):  # which half is preferred depends on random numbers; their sum doesn't
    lin, ref, *others = (head(H, V, bias=True) for _ in range(4))
    x, y, target = (
        draw(B, T, H, dtype=HALF, grad=False),
        draw(B, T, H, dtype=HALF, grad=False),
        torch.randint(V, (B, T)),
    )
    wanted, kl = torch.randint(2, (B,)), torch.randn(1, dtype=HALF)

    def halves(t):
        return [t[torch.empty(n, dtype=torch.long, device=t.device)] for n in (B // 2, B - B // 2)]

    def forward():
        def policy():
            outputs = x @ lin.weight.t()
            outputs = outputs + lin.bias
            logits = outputs.float()
            logps = log_probabilities(logits, target)
            return *halves(logps), *halves(logits)

        chosen, rejected, *logits = policy()

        def reference():
            with torch.no_grad():
                outputs = y @ ref.weight.t()
                outputs = outputs + ref.bias
                return halves(log_probabilities(outputs, target))

        ref_chosen, ref_rejected = reference()
        losses = (
            1 - F.sigmoid(0.1 * (chosen - ref_chosen - kl)),
            1 - F.sigmoid(0.1 * (kl - (rejected - ref_rejected))),
        )
        return torch.cat(losses).mean()

    return [lin, ref, *others, x, y, target, wanted, kl], forward, scalar


def distil(loss):
    "A student of half the width, its teacher and the labels, by `loss` of the two logits"

    def make(BT, H, V, **_):
        student, teacher, *others = head(H // 2, V), head(H, V), head(H // 2, V), head(H, V)
        kept = torch.rand(BT, H // 2, dtype=HALF)
        x, _unused = (kept.detach().clone().requires_grad_() for _ in range(2))
        y, target = torch.rand(BT, H, dtype=HALF), torch.randint(V, (BT,))

        def forward():
            def logits():
                a = x @ student.weight.t()
                with torch.no_grad():
                    b = y @ teacher.weight.t()
                a, b = a.float(), b.float()
                return a, b, F.cross_entropy(a, target)

            a, b, hard = logits()
            return 0.5 * hard + 0.5 * loss(a, b).mean()

        return [student, teacher, *others, kept, x, _unused, y, target], forward, scalar

    return make


def js_of_logits(a, b):
    p, q = F.log_softmax(a, -1), F.log_softmax(b, -1)
    m = 0.5 * p.exp() + 0.5 * q.exp()
    m = m.log()
    s, t = kl(m, p), kl(m, q)
    return 0.5 * t + 0.5 * s


def cosine(a, b):
    a, b = F.normalize(a, p=2, dim=-1), F.normalize(b, p=2, dim=-1)
    return 1.0 * (1 - F.cosine_similarity(a, b, dim=-1))


distill_jsd_loss, distill_cosine_loss = distil(js_of_logits), distil(cosine)


def grpo(sequence):
    def make(B, T, H, V, **_):
        lin, ref, *others = head(H, V), head(H, V), head(H, V), head(H, V)
        x, y, ids = draw(B, T, H, dtype=HALF), draw(B, T, H, dtype=HALF, grad=False), torch.randint(V, (B, T))
        mask, gain = torch.ones(B, T), torch.randn(B, dtype=HALF)

        def forward():
            logits = x @ lin.weight.t()
            logs = F.log_softmax(logits.float(), -1)
            picked = logs.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
            with torch.no_grad():
                ref_logits = y @ ref.weight.t()
                ref_logs = F.log_softmax(ref_logits.float(), -1)
                expected = ref_logs.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
            ratio = picked - picked.detach()
            if sequence:
                ratio = ((ratio * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).unsqueeze(-1)
            free = torch.exp(ratio)
            held = torch.clamp(free, 0.8, 1.2)
            loss = -torch.min(free * gain.unsqueeze(1), held * gain.unsqueeze(1))
            distance = torch.exp(expected - picked) - (expected - picked) - 1.0
            loss = loss + 0.1 * distance
            return (loss * mask).sum() / torch.clamp(mask.sum(), min=1.0)

        return [lin, ref, *others, x, y, ids, mask, gain], forward, scalar

    return make


fused_linear_grpo_loss_token, fused_linear_grpo_loss_sequence = grpo(False), grpo(True)
tiled_geglu, tiled_swiglu = geglu, swiglu


# --- one row ---------------------------------------------------------------------------------------------

WHOLE = {'group_norm', 'sparsemax'}  # whose benchmark runs both passes whatever it is asked for


def prepare(operation, mode, setting):
    "What lies on the card after one repetition, and the function that is the next"
    kept, forward, backward = globals()[operation](**setting)

    def run():
        backward(forward())

    run()  # the process has been through both passes: cuBLAS has its workspaces, the inputs their gradients
    if mode != 'full' and operation not in WHOLE:
        for t in kept:
            for p in t.parameters() if isinstance(t, nn.Module) else (t,):
                p.grad = None
        run = forward
        if mode == 'backward':
            y = forward()
            gradient = torch.randn_like(y)

            def run():
                y.backward(gradient, retain_graph=True)

            run()
    model = nn.Module()
    model.parts, model.kept = nn.ModuleList(p for p in kept if isinstance(p, nn.Module)), kept
    model.empty = nn.Parameter(torch.empty(0))  # an optimizer wants one
    return model, run
