"""What the exact loss of a mixture of many centers costs, and what other losses do.

    python benchmarks/wpo.py speed|memory|objectives|large|all [--rounds 5] [--threads 1]

speed       forward and backward pass of every method and of the likelihood at three sizes, against autograd
            over whole factors, against the first system's formulas, and against the machine's own rate of
            float32 matrix products; all take turns, a ratio is of one round
memory      true peak of tensors beyond parameters, gradients, samples and centers
objectives  8gaussians, 64 centers, 600 steps, ten seeds: what is learnt by the exact loss and the average of
            the losses of chunks of 16, from the width h that neighbours suggest and from 0.28; three seeds by
            chunks of 4, and by the first system's formulas
large       one exact step at d 3072, K 1000, B 8 in a process of its own: seconds and peak RSS
The results go to results/wpo_speed.json, wpo_memory_peaks.json, wpo_objectives.json, wpo_large.json.
"""

import argparse, functools, math, os, statistics, sys, time

import torch

from memtrain.core import MemtrainError, format_size, save_result
from memtrain.measure import measure_command, measure_peak
from memtrain.mixtures import make_points, sliced_wasserstein, true_log_prob
from memtrain.wpo import FactorNet, fit_mixing, ism_loss, log_prob, sample

SIZES = (192, 256, 32), (768, 64, 8), (1536, 64, 8)


# --- the first system's formulas ---------------------------------------------------------------


def first_system(net, x, centers):
    "|P u|² for the Mahalanobis distance, log densities cut off at -200, precision matrices whole"
    L = net.cholesky(centers)
    P = L @ L.mT
    u = x[:, None] - centers
    v = torch.einsum('kij,bkj->bki', P, u)
    log_density = (
        torch.logdet(P) / 2 - v.square().sum(2) / 2 - x.shape[1] / 2 * math.log(2 * math.pi)
    ).clamp(min=-200)
    w = log_density.softmax(1)
    score = -(w[..., None] * v).sum(1)
    lap = (w * (v.square().sum(2) - P.diagonal(dim1=1, dim2=2).sum(1))).sum(1)
    return (2 * lap - score.square().sum(1)).mean()


def averaged(net, x, centers, size=16):
    return torch.stack([ism_loss(net, x, part, 'dense') for part in centers.split(size)]).mean()


# --- speed and memory ----------------------------------------------------------------------------


def ways(d, K, B, **kw):
    "A network, and the losses that are compared, by name; `kw` is for those without matrices"
    torch.manual_seed(0)
    net, mu = FactorNet(d, 64), torch.randn(K, d)
    x = mu[torch.randint(K, (B,))] + torch.randn(B, d) / 2
    # each sample is near one center; so close together, all centers count for all samples
    close = d**-0.5
    loss = {
        'first system': lambda: first_system(net, x, mu),
        'dense': lambda: ism_loss(net, x, mu, 'dense'),
        'chunked, 8': lambda: ism_loss(net, x, mu, 'chunked', chunk_size=8),
        'matrix_free': lambda: ism_loss(net, x, mu, **kw),
        'matrix_free, screened': lambda: ism_loss(net, x, mu, screen=30, **kw),
        'matrix_free, all count': lambda: ism_loss(net, close * x, close * mu, **kw),
        'likelihood': lambda: ism_loss(net, x, mu, likelihood=1.0, **kw),
        'likelihood, all count': lambda: ism_loss(net, close * x, close * mu, likelihood=1.0, **kw),
    }
    return net, {k: f for k, f in loss.items() if d <= 1000 or k != 'first system'}


def seconds_of(f):
    started = time.perf_counter()
    f()
    return time.perf_counter() - started


def product_rate():
    "Multiply-adds a second of a float32 matrix product of 1,024 x 1,024"
    a, b = torch.randn(2, 1024, 1024)
    return 1024**3 / min(seconds_of(lambda: a @ b) for _ in range(5))


def measure_speed(args):
    found = []
    for d, K, B in SIZES:
        net, losses = ways(d, K, B)

        def step(loss):
            for p in net.parameters():
                p.grad = None
            loss().backward()

        steps = {k: functools.partial(step, f) for k, f in losses.items()}
        p, H = d * (d + 1) // 2, 64
        work = 4 * K * p * H + 5 * K * B * p
        for f in steps.values():
            f()
        runs, rates = {k: [] for k in steps}, []
        for r in range(args.rounds):
            for k in list(steps)[:: -1 if r % 2 else 1]:
                runs[k].append(seconds_of(steps[k]))
            rates.append(product_rate())
        row = {
            'd': d,
            'K': K,
            'B': B,
            'seconds': runs,
            'median': {k: statistics.median(v) for k, v in runs.items()},
            'multiply_adds': work,
            'product_rates': rates,
        }
        row['of_product_rate'] = statistics.median(
            work / s / rate for s, rate in zip(runs['matrix_free, all count'], rates)
        )
        row['times'] = {
            k: statistics.median(a / b for a, b in zip(v, runs['matrix_free, all count']))
            for k, v in runs.items()
        }
        print(
            f"d {d}, K {K}, B {B}: "
            + ', '.join(f'{k} {s:.3f} s ({row["times"][k]:.2f})' for k, s in row['median'].items())
            + f"; {row['of_product_rate']:.2f} of the rate of a product",
            flush=True,
        )
        found.append(row)
    return save_result(
        'wpo_speed',
        {'sizes': found, 'threads': args.threads, 'rounds': args.rounds, 'load': os.getloadavg()[0]},
        'python benchmarks/wpo.py speed',
    )


def measure_memory(args):
    found = []
    for d, K, B in ((256, 64, 8), (256, 2048, 8), *SIZES[:2]):
        net, losses = ways(d, K, B, into_grad=True)
        for p in net.parameters():
            p.grad = torch.zeros_like(p)
        row = {
            'd': d,
            'K': K,
            'B': B,
            'parameters': 4 * sum(q.numel() for q in net.parameters()),
            'extra': {},
        }
        for k, f in losses.items():
            if K <= 1000 or 'matrix_free' in k or 'likelihood' in k:
                row['extra'][k] = measure_peak(lambda: f().backward())
        print(
            f'd {d}, K {K}, B {B}:',
            ', '.join(f'{k} {format_size(n)}' for k, n in row['extra'].items()),
            flush=True,
        )
        found.append(row)
    return save_result('wpo_memory_peaks', {'sizes': found}, 'python benchmarks/wpo.py memory')


# --- objectives ------------------------------------------------------------------------------------


def eight(n, g):
    return make_points('8gaussians', n, g)


def measure_objectives(args):
    wide = 'average over chunks of 16, h 0.28'
    losses, found = (
        {
            'exact': ism_loss,
            'average over chunks of 16': averaged,
            wide: averaged,
            'average over chunks of 4': functools.partial(averaged, size=4),
            "the first system's": first_system,
        },
        [],
    )
    for seed in range(10):
        for name, loss in list(losses.items())[: 3 if seed > 2 else None]:
            torch.manual_seed(seed)
            g = torch.Generator().manual_seed(100 + seed)
            mu, train, test = eight(64, g), eight(5000, g), eight(5000, g)
            near = (torch.cdist(mu, mu) + 1e9 * torch.eye(64)).amin(1).median().item()
            if name == wide:
                near = 0.28
            net = FactorNet(2, 64, 5, scale=1 / near)
            opt = torch.optim.AdamW(net.parameters(), 3e-3)
            plan = torch.optim.lr_scheduler.OneCycleLR(opt, 3e-3, 600, pct_start=0.05)
            row = {
                'seed': seed,
                'loss': name,
                'h': near,
                'true nll': -true_log_prob('8gaussians', test).mean().item(),
                'of the data itself': sliced_wasserstein(train, test),
            }
            try:
                for _ in range(600):
                    opt.zero_grad()
                    loss(net, eight(256, g), mu).backward()
                    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0, error_if_nonfinite=True)
                    opt.step()
                    plan.step()
                lm = fit_mixing(net, train, mu)
                row |= {
                    'nll': -log_prob(net, test, mu).mean().item(),
                    'nll, mixing fitted': -log_prob(net, test, mu, lm).mean().item(),
                    'sliced wasserstein': sliced_wasserstein(sample(net, mu, 5000, lm, g), test),
                }
            except (MemtrainError, RuntimeError) as e:
                row['diverged'] = str(e)
            print(row, flush=True)
            found.append(row)
    return save_result('wpo_objectives', {'runs': found}, 'python benchmarks/wpo.py objectives')


# --- the large one -----------------------------------------------------------------------------------

LARGE = '''
import sys, time, torch
from memtrain.wpo import FactorNet, ism_loss
torch.set_num_threads(int(sys.argv[1]))
torch.manual_seed(0)
net, mu = FactorNet(3072, 64), torch.randn(1000, 3072)
x = mu[:8] + torch.randn(8, 3072)/2
kw = dict(whole={}, screened=dict(screen=30), likelihood=dict(likelihood=1.0))[sys.argv[2]]
started = time.perf_counter()
loss = ism_loss(net, x, mu, into_grad=True, **kw)
loss.backward()
print(time.perf_counter() - started, loss.item(), sum(p.numel() for p in net.parameters()))
'''


def measure_large(args):
    found = {}
    for threads, how in ((2, 'whole'), (2, 'screened'), (2, 'likelihood')):
        run = measure_command([sys.executable, '-c', LARGE, str(threads), how])
        seconds, loss, params = map(float, run.stdout.split())
        found[how] = {
            'threads': threads,
            'seconds': seconds,
            'loss': loss,
            'params': params,
            'peak_rss': run.peak_rss,
        }
        print(how, found[how], flush=True)
    return save_result('wpo_large', found, 'python benchmarks/wpo.py large')


if __name__ == '__main__':
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('what', choices=['speed', 'memory', 'objectives', 'large', 'all'])
    p.add_argument('--rounds', type=int, default=5)
    p.add_argument('--threads', type=int, default=1)
    args = p.parse_args()
    torch.set_num_threads(args.threads)
    for name, measure in dict(
        speed=measure_speed, memory=measure_memory, objectives=measure_objectives, large=measure_large
    ).items():
        if args.what in (name, 'all'):
            measure(args)
