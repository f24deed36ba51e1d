"""How well mixtures learn by the exact loss: likelihood and distance on samples that nobody has seen.

    python benchmarks/wpo_train.py [--seeds 3] [--parts before points averaged centers digits images_seen]

Before: what training begins with, the factors I/h and fitted mixing weights. Points: eight Gaussians with
64 centers, the checkerboard with 200; 600 steps, every seed. Averaged: the eight Gaussians again, by the
mean of the losses of separate mixtures of 16, 4 and 1 centers, with all else the same. Centers: the
checkerboard with 50 to 1,200 centers. Digits: 200 centers among the images, 250 steps, every seed, beside a
single Gaussian with a full covariance matrix. Images seen: digits once more, without leaving images that
are centers out of their own sums. The result goes to results/wpo_train.json, that of before to
wpo_untrained.json, after every part; parts that are not asked for stay in it as they were.
"""

import argparse, math, os

PARTS = ("before", "points", "averaged", "centers", "digits", "images_seen")
KEEP = (
    "centers",
    "bandwidth",
    "strategy",
    "seconds",
    "nll_train",
    "nll_held_out",
    "nll_true",
    "memorisation_gap",
    "sliced_wasserstein",
    "sliced_wasserstein_of_data",
    "measured_on",
)
POINTS = [
    dict(data=data, train_kernel_size=K, strategy="single_gpu")
    for data, K in (("8gaussians", 64), ("checkerboard", 200))
]
DIGITS = dict(
    data="digits", train_kernel_size=200, batch_size=64, lr=1e-3, strategy="matrix_free", max_iters=250
)


def train(cls=None, **kw):
    "The summary of a run, and what it was set to"
    from memtrain.wpo_train import WPOConfig, WPOTrainer

    s = (cls or WPOTrainer)(WPOConfig(**kw), device="cpu").run()
    found = {k: s[k] for k in KEEP} | {"settings": kw}
    print({k: round(v, 3) if isinstance(v, float) else v for k, v in found.items()}, flush=True)
    return found


def averaged(size):
    "A trainer by the mean of the losses of separate mixtures of `size` centers"
    from memtrain.wpo import ism_loss
    from memtrain.wpo_train import WPOTrainer

    class Averaged(WPOTrainer):
        def loss_and_gradient(self, x, own):
            loss = sum(ism_loss(self.net, x, part, "dense") for part in self.centers.split(size)) / math.ceil(
                len(self.centers) / size
            )
            loss.backward()
            return loss.item()

    return Averaged


def single_gaussian(seed):
    "Negative log likelihood of held-out digits under one Gaussian with the mean and covariance of the others"
    import torch
    from memtrain.mixtures import load_images, see_images

    images, apart, levels = load_images("digits", seed=seed)
    g = torch.Generator().manual_seed(seed)
    held_out, x = (see_images(part, levels, generator=g).double() for part in (apart, images))
    return -torch.distributions.MultivariateNormal(x.mean(0), x.T.cov()).log_prob(held_out).mean().item()


def measure(part, seeds):
    if part == "before":  # steps that change nothing, and enough of them that all digits are measured on
        return [
            train(**{**settings, "seed": s, "max_iters": 30, "lr": 1e-9})
            for settings in (*POINTS, DIGITS)
            for s in range(seeds)
        ]
    if part == "points":
        return [train(seed=s, **settings) for settings in POINTS for s in range(seeds)]
    if part == "averaged":
        return [
            train(averaged(size), seed=s, train_kernel_size=64, strategy="single_gpu") | {"size": size}
            for size in (16, 4, 1)
            for s in range(seeds)
        ]
    if part == "centers":
        return [
            train(data="checkerboard", train_kernel_size=K, strategy="single_gpu", seed=0)
            for K in (50, 200, 600, 1200)
        ]
    if part == "digits":
        return [train(seed=s, **DIGITS) | {"single_gaussian": single_gaussian(s)} for s in range(seeds)]
    return [train(seed=s, leave_one_out=False, **DIGITS) for s in range(seeds)]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    a = parser.parse_args()
    from memtrain.core import MemtrainError, load_result, save_result

    try:
        values = load_result("wpo_train").values
    except MemtrainError:
        values = {}
    for part in a.parts:
        found = measure(part, a.seeds)
        if part == "before":
            save_result("wpo_untrained", {"runs": found}, "python benchmarks/wpo_train.py --parts before")
        else:
            save_result("wpo_train", values := values | {part: found}, "python benchmarks/wpo_train.py")


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    main()
