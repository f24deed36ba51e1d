"""Trained mixtures beside cheap baselines: held-out nats and sliced Wasserstein distance on digits and two laws of the plane.

    python benchmarks/wpo_baselines.py            # a few minutes on two cores; writes results/wpo_baselines.json
    python benchmarks/wpo_baselines.py --dry      # prints and writes nothing

Baselines: one Gaussian, a kernel density estimate whose width is the best of a grid on samples apart, and scikit-learn's GaussianMixture (pip install scikit-learn), as it comes.
All see the same samples to learn from and are measured on the same held-out ones.
"""
import argparse
import math
import os
import time

SETTINGS = {
    "digits": {"train_kernel_size": 20, "batch_size": 128, "max_iters": 250},
    "8gaussians": {"train_kernel_size": 8, "max_iters": 200},
    "checkerboard": {"train_kernel_size": 200, "hiddenunits": 128, "batch_size": 512, "max_iters": 600},
}
COMPONENTS = {"digits": 10, "8gaussians": 8, "checkerboard": 200}


def baselines(name, seed, train, val, held_out):
    "Held-out nats and distance of each"
    import torch
    from sklearn.mixture import GaussianMixture
    from sklearn.neighbors import KernelDensity
    from memtrain.wpo import sliced_wasserstein
    def judge(nll, drawn): return {"nll": float(nll), "distance": sliced_wasserstein(torch.as_tensor(drawn).float(), held_out)}
    one = torch.distributions.MultivariateNormal(train.mean(0).double(), train.double().T.cov())
    torch.manual_seed(seed)
    out = {"one Gaussian": judge(-one.log_prob(held_out.double()).mean(), one.sample((len(held_out),)))}
    widths = [KernelDensity(bandwidth=h).fit(train.numpy()) for h in (0.03, 0.05, 0.08, 0.12, 0.18, 0.27, 0.4)]
    kde = max(widths, key=lambda k: k.score(val.numpy()))
    out["kernel density"] = judge(-kde.score(held_out.numpy())/len(held_out), kde.sample(len(held_out), random_state=seed))
    gmm = GaussianMixture(COMPONENTS[name], random_state=seed).fit(train.double().numpy())
    out[f"scikit-learn's mixture of {COMPONENTS[name]}"] = judge(-gmm.score(held_out.double().numpy()), gmm.sample(len(held_out))[0])
    return out


def run(name, seed):
    "One trained mixture, its beginning, and the baselines"
    from memtrain.wpo_train import WPOConfig, WPOTrainer
    trained = {}
    for label, likelihood in (("maximum likelihood", 1.0), ("score matching", 0.0)):
        start = time.perf_counter()
        t = WPOTrainer(WPOConfig(data=name, seed=seed, strategy="single_gpu", likelihood=likelihood, **SETTINGS[name]), device="cpu")
        if not trained:
            f = t.judge()
            trained["untrained"] = {"nll": f["nll_held_out"], "distance": f["sliced_wasserstein"], "seconds": time.perf_counter() - start}
            t = WPOTrainer(t.config, device="cpu")
        f = t.run()
        trained[label] = {"nll": f["nll_held_out"], "gap": f["memorisation_gap"], "distance": f["sliced_wasserstein"], "seconds": time.perf_counter() - start, "best_step": f["best_step"]}
    import torch
    g = torch.Generator().manual_seed(seed)
    train = t.source.fit if t.source.size is None else torch.cat([t.source.learnt(t.source.size, g)[0] for _ in range(8)])  # noise anew eight times, as training has it in every batch
    row = {"data": name, "seed": seed, "settings": SETTINGS[name], "true": f["nll_true"], "of data": f["sliced_wasserstein_of_data"], **trained, **baselines(name, seed, train, t.source.val, t.source.held_out)}
    print(name, seed, "true", row["true"], {k: (round(v["nll"], 3), round(v["distance"], 3)) for k, v in row.items() if isinstance(v, dict) and "nll" in v}, flush=True)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data", nargs="*", default=list(SETTINGS))
    parser.add_argument("--dry", action="store_true", help="print and write nothing")
    a = parser.parse_args()
    from memtrain.core import save_result
    rows = [run(name, seed) for name in a.data for seed in range(a.seeds)]
    assert all(math.isfinite(r["maximum likelihood"]["nll"]) for r in rows)
    if not a.dry: save_result("wpo_baselines", {"runs": rows}, "python benchmarks/wpo_baselines.py" + (f" --seeds {a.seeds}" if a.seeds != 3 else "") + (f" --data {' '.join(a.data)}" if a.data != list(SETTINGS) else ""))


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    main()
