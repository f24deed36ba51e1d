"""Other people's training loops over memtrain's data, each on two processes: every window once, and again
the same behind a checkpoint in the middle.

The page *Under other people's tools* shows these functions, and tests/test_other_tools.py runs them (what
isn't installed is skipped):

    RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 python benchmarks/recipes.py accelerate
    DATA FOLDER 0
"""

import json, os, sys
from pathlib import Path

import torch

from memtrain.loader import TokenLoader
from memtrain.shards import TokenShards

T, B = 8, 4  # tokens of a window, windows of a batch


class Step(torch.nn.Module):
    "Stands for a model: its output is its loss."

    def __init__(self):
        super().__init__()
        self.w = torch.nn.Linear(T, 1)

    def forward(self, x):
        return self.w(x.float()).mean() * 1e-6


def with_accelerate(data, folder, resume):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    loader = TokenLoader(data, B, T)  # made behind the Accelerator, and not prepared
    accelerator.register_for_checkpointing(loader)
    model = Step()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 1e-3))
    if resume:
        accelerator.load_state(folder)
    for n, (x, y) in enumerate(loader, 1):
        accelerator.backward(model(x))
        optimizer.step()
        optimizer.zero_grad()
        yield x
        if n == 3 and not resume:
            accelerator.save_state(folder)
            return


def with_fabric(data, folder, resume):
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator='cpu', devices=2, strategy='ddp')
    fabric.launch()
    loader = TokenLoader(data, B, T)
    model = Step()
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), 1e-3))
    state = {'model': model, 'optimizer': optimizer, 'loader': loader.state_dict()}
    if resume:
        fabric.load(folder / 'fabric.ckpt', state)
        loader.load_state_dict(state['loader'])
    for n, (x, y) in enumerate(loader, 1):
        fabric.backward(model(x))
        optimizer.step()
        optimizer.zero_grad()
        yield x
        if n == 3 and not resume:
            fabric.save(folder / 'fabric.ckpt', {**state, 'loader': loader.state_dict()})
            return


def with_lightning(data, folder, resume):
    import lightning

    seen = []

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.step = Step()

        def train_dataloader(self):
            return TokenLoader(data, B, T)  # called when the ranks are known

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 1e-3)

        def training_step(self, batch, i):
            seen.append(batch[0])
            return self.step(batch[0])

    keep = lightning.pytorch.callbacks.ModelCheckpoint(
        folder, 'lightning', every_n_train_steps=3, enable_version_counter=False
    )
    trainer = lightning.Trainer(
        accelerator='cpu',
        devices=2,
        strategy='ddp',
        max_epochs=1,
        max_steps=-1 if resume else 3,
        logger=False,
        callbacks=[keep],
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        default_root_dir=folder,
    )
    trainer.fit(Module(), ckpt_path=folder / 'lightning.ckpt' if resume else None)
    return seen


def with_trainer(data, folder, resume):
    import transformers

    # its models shift labels themselves
    seen, loader = [], TokenLoader(data, B, T, transform=lambda x, y: {'input_ids': x, 'labels': x})

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.step = Step()

        def forward(self, input_ids, labels):
            seen.append(input_ids)
            return {'loss': self.step(input_ids)}

    class Trainer(transformers.Trainer):
        def get_train_dataloader(self):
            return loader  # not Accelerate's

    class KeepPlace(transformers.TrainerCallback):
        def on_save(self, args, state, control, **kw):
            torch.save(
                loader.state_dict(),
                f'{args.output_dir}/checkpoint-{state.global_step}/loader-{args.process_index}.pt',
            )

    args = transformers.TrainingArguments(
        folder / 'hf',
        per_device_train_batch_size=B,
        num_train_epochs=1,
        max_steps=-1 if resume else 3,
        save_steps=3,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        ignore_data_skip=True,
        save_strategy='steps',
        logging_strategy='no',
    )
    trainer = Trainer(Model(), args, callbacks=[KeepPlace()])
    if resume:
        loader.load_state_dict(torch.load(folder / 'hf/checkpoint-3' / f'loader-{args.process_index}.pt'))
    trainer.train(resume_from_checkpoint=str(folder / 'hf/checkpoint-3') if resume else None)
    return seen


def with_torchdata(data, folder, resume):
    from torchdata.stateful_dataloader import StatefulDataLoader

    rank = int(os.environ['RANK'])
    loader = StatefulDataLoader(TokenLoader(data, B, T), batch_size=None, num_workers=2)
    if resume:
        loader.load_state_dict(torch.load(folder / f'torchdata-{rank}.pt'))
    for n, (x, y) in enumerate(loader, 1):
        yield x
        if n == 3 and not resume:
            torch.save(loader.state_dict(), folder / f'torchdata-{rank}.pt')
            return


def with_grain(data, folder, resume):
    import grain

    rank, world_size = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])
    windows = TokenShards(data).windows(T)
    # its DataLoader would leave out what doesn't fill all ranks
    loader = iter(
        grain.MapDataset.source(windows).shuffle(seed=0)[rank::world_size].batch(B).to_iter_dataset()
    )
    place = folder / f'grain-{rank}'
    if resume:
        loader.set_state(json.loads(place.read_text()))
    for n, (x, y) in enumerate(loader, 1):
        yield torch.from_numpy(x)
        if n == 3 and not resume:
            place.write_text(json.dumps(loader.get_state()))
            return


if __name__ == "__main__":
    name, data, folder, resume = sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4] == "1"
    found = [int(v) for x in globals()[f"with_{name}"](data, folder, resume) for v in x[:, 0]]
    (folder / f"{name}-{os.environ['RANK']}-{int(resume)}.json").write_text(json.dumps(found))
