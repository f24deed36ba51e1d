"""Trained mixtures beside cheap baselines: held-out nats and distance: the plane, digits, CIFAR-10.

    python benchmarks/wpo_baselines.py [--data digits …] [--seeds 3]  # results/wpo_baselines_digits.json …
    python benchmarks/wpo_baselines.py --data cifar10 --data_dir FOLDER   # minutes, and about 2 GiB
    python benchmarks/wpo_baselines.py --dry                              # prints and writes nothing

Baselines: one Gaussian, one with a ridge on its covariance (images), a kernel density estimate (round
kernels or kernels of the pooled covariance), and scikit-learn's GaussianMixture (pip install scikit-learn).
Ridge, width and number of components are those that samples apart find likeliest; so are our centers, out
of the numbers in CHOICES, with seed 0, for all seeds. Held-out samples choose nothing. All see the same
samples to learn from and are measured on the same held-out ones.
"""

import argparse
import math
import os
import time

PLANE = dict(hiddenunits=128, batch_size=512, max_iters=300, lr=3e-4)
SETTINGS = {
    name: PLANE for name in ("8gaussians", "swissroll", "pinwheel", "circles", "moons", "2spirals", "rings")
} | {
    "checkerboard": dict(hiddenunits=256, batch_size=512, max_iters=600, lr=1e-3),
    "digits": dict(batch_size=128, max_iters=100),
    "cifar10": dict(rank=16, batch_size=64, max_iters=100, eval_interval=25, noise=0.0),
}
CHOICES = dict.fromkeys(SETTINGS, (50, 150)) | {
    "8gaussians": (8, 50),
    "checkerboard": (200, 400),
    "digits": (10, 20),
    "cifar10": (48,),
}
COMPONENTS = dict.fromkeys(SETTINGS, (50, 150)) | {
    "8gaussians": (8, 50),
    "checkerboard": (200,),
    "digits": (5, 10, 20),
}
WIDTHS = [0.03 * 1.3**i for i in range(15)]
OBJECTIVES = {"maximum likelihood": 1.0, "half of each": 0.5, "score matching": 0.0}


def baselines(name, seed, train, val, held_out, noise):
    "Held-out nats and distance of each"
    import torch
    from memtrain.mixtures import sliced_wasserstein
    from memtrain.wpo_start import Whitening

    def judge(nll, drawn, **kw):
        return {
            "nll": float(nll),
            "distance": sliced_wasserstein(torch.as_tensor(drawn).float(), held_out),
            **kw,
        }

    pooled = Whitening.fit(train)

    def gaussian(ridge):
        w = pooled.widen(ridge)

        def nll(x):
            return (
                w.apply(x).double().square().sum(1).mean().item() + x.shape[1] * math.log(2 * math.pi)
            ) / 2 - w.log_det

        return nll(val), nll(held_out), w

    torch.manual_seed(seed)
    ridges = {
        r: gaussian(r) for r in ([0.0] if len(train[0]) == 2 else [noise * r for r in (0, 0.5, 1, 2, 4)])
    }
    out, best = {}, min(ridges, key=lambda r: ridges[r][0])
    for label, r in {"one Gaussian": 0.0, "one Gaussian with the best ridge": best}.items():
        if r or label == "one Gaussian":
            out[label] = judge(
                ridges[r][1], ridges[r][2].invert(torch.randn(len(held_out), train.shape[1])), ridge=r
            )
    none, kernels = (
        Whitening(torch.zeros(train.shape[1]), torch.eye(train.shape[1]), torch.ones(train.shape[1])),
        [],
    )
    for label, w in {
        "round": none,
        **{f"the pooled covariance, ridge {r:.3g}": ridges[r][2] for r in ridges},
    }.items():
        at = w.apply(train).double()

        # from every distance, for each width: the bounds of scikit-learn's trees lose up to 30 nats in 64
        # dimensions
        def nlls(x):
            apart = torch.cdist(w.apply(x).double(), at).square()
            return [
                math.log(len(at))
                + x.shape[1] * math.log(h * math.sqrt(2 * math.pi))
                - w.log_det
                - (-apart / (2 * h * h)).logsumexp(1).mean().item()
                for h in WIDTHS
            ]

        vals = nlls(val)
        i = min(range(len(WIDTHS)), key=vals.__getitem__)
        near = at[torch.randint(len(at), (len(held_out),))]
        kernels.append(
            (
                vals[i],
                judge(
                    nlls(held_out)[i],
                    w.invert((near + WIDTHS[i] * torch.randn_like(near)).float()),
                    width=WIDTHS[i],
                    kernels=label,
                ),
            )
        )
    out["kernel density"] = min(kernels, key=lambda found: found[0])[1]
    # scikit-learn's mixtures have full covariances, 75 MB each in 3,072 dimensions, or diagonal ones of
    # pixels
    if name == "cifar10":
        return out
    from sklearn.mixture import GaussianMixture

    fits = [GaussianMixture(n, random_state=seed).fit(train.double().numpy()) for n in COMPONENTS[name]]
    gmm = max(fits, key=lambda m: m.score(val.double().numpy()))
    out["scikit-learn's mixture"] = judge(
        -gmm.score(held_out.double().numpy()), gmm.sample(len(held_out))[0], components=gmm.n_components
    )
    return out


def train(name, seed, K, data_dir, **kw):
    "A finished trainer, and what it found"
    from memtrain.mixtures import judge_mixture
    from memtrain.wpo_train import WPOConfig, WPOTrainer

    start, used = time.perf_counter(), time.process_time()
    t = WPOTrainer(
        WPOConfig(
            **{
                "data": name,
                "data_dir": data_dir,
                "seed": seed,
                "strategy": "single_gpu",
                "train_kernel_size": K,
                **SETTINGS[name],
                **kw,
            }
        ),
        device="cpu",
    )
    before = judge_mixture(t.mixture, t.source, seed=seed)[1]
    f = t.run()
    return t, {
        "nll": f["nll_held_out"],
        "gap": f["memorisation_gap"],
        "distance": f["sliced_wasserstein"],
        "bits": f["bits_per_dim"],
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - used,
        "best_step": f["best_step"],
        "val": t.best["nll"],
        "untrained": {"nll": before["nll_held_out"], "distance": before["sliced_wasserstein"]},
        "true": f["nll_true"],
        "of data": f["sliced_wasserstein_of_data"],
    }


def run(name, seed, K, objectives, data_dir, done=None):
    "Trained mixtures, their beginning, and the baselines; `done`: one by the first objective"
    import torch

    t, first = done or train(name, seed, K, data_dir, likelihood=OBJECTIVES[objectives[0]])
    found = {objectives[0]: first} | {
        k: train(name, seed, K, data_dir, likelihood=OBJECTIVES[k])[1] for k in objectives[1:]
    }
    g = torch.Generator().manual_seed(seed)
    # noise anew eight times, as training has it in every batch
    learnt = (
        t.source.fit
        if t.source.size is None
        else torch.cat([t.source.learnt(t.source.size, g)[0] for _ in range(8 if name == "digits" else 1)])
    )
    row = {
        "data": name,
        "seed": seed,
        "K": K,
        "settings": SETTINGS[name],
        "true": first["true"],
        "of data": first["of data"],
        "untrained": first["untrained"],
        **found,
        **baselines(name, seed, learnt, t.source.val, t.source.held_out, t.source.std),
    }
    print(
        name,
        seed,
        "K",
        K,
        "true",
        row["true"],
        {
            k: (round(v["nll"], 3), round(v["distance"], 3))
            for k, v in row.items()
            if isinstance(v, dict) and "nll" in v
        },
        flush=True,
    )
    return row


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--data", nargs="*", default=[k for k in SETTINGS if k != "cifar10"], choices=list(SETTINGS)
    )
    parser.add_argument("--data_dir", help="folder of CIFAR-10's files")
    parser.add_argument("--objectives", nargs="*", default=["maximum likelihood"], choices=list(OBJECTIVES))
    parser.add_argument("--dry", action="store_true", help="print and write nothing")
    a = parser.parse_args()
    from memtrain.core import save_result

    for name in a.data:
        command = (
            f"python benchmarks/wpo_baselines.py --data {name} --seeds {a.seeds} "
            f"--objectives {' '.join(map(repr, a.objectives))}" + " --data_dir …" * (name == "cifar10")
        )
        done = {K: train(name, 0, K, a.data_dir) for K in CHOICES[name]}
        vals = {K: f["val"] for K, (_, f) in done.items()}
        K = min(vals, key=vals.get)
        print(name, "held back:", {K: round(v, 3) for K, v in vals.items()}, flush=True)
        rows = [
            run(
                name,
                seed,
                K,
                a.objectives if not seed else a.objectives[:1],
                a.data_dir,
                None if seed else done[K],
            )
            | {"chosen_by": vals}
            for seed in range(a.seeds)
        ]
        if not a.dry:
            save_result(f"wpo_baselines_{name}", {"runs": rows}, command)


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import torch

    torch.set_num_threads(1)
    main()
