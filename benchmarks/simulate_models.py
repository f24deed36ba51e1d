#!/usr/bin/env python3
"""Training steps of other people's models: the peak that `simulate` tells, against the true one on this
CPU.

    python benchmarks/simulate_models.py [--only TEXT]

Small configurations of the models of transformers, timm, diffusers, torchvision and torch, each with two
steps of its training; they need the packages that bring them, `pip install transformers timm diffusers
torchvision peft`. The truth is `memtrain.measure.measure_step`. The table goes to
results/simulate_models.json."""

from __future__ import annotations

import argparse, functools, importlib, importlib.metadata, statistics, time, warnings

import torch
import torch.nn as nn
import torch.nn.functional as F

from memtrain.core import MemtrainError, format_size, progress, save_result
from memtrain.estimate import simulate
from memtrain.measure import measure_step

CASES = {}  # name of a step to what makes its model, its loss, and how it is trained


def case(name, build, loss, optimizer=torch.optim.AdamW, half=False):
    "A step called `name`: `loss` of the model that `build` makes, and AdamW unless another is named"

    def step(model, optimizer):
        optimizer.zero_grad()
        with torch.autocast('cpu', torch.bfloat16, enabled=half):
            found = loss(model)
        found.backward()
        optimizer.step()

    CASES[name] = build, optimizer, step


# --- transformers: causal models, by what is asked of them ----------------------------------------

SMALL = dict(
    vocab_size=1000,
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=3,
    num_attention_heads=4,
    max_position_embeddings=512,
    pad_token_id=0,
)
GROUPED = dict(SMALL, num_key_value_heads=2)
CAUSAL = {
    'gpt2': dict(vocab_size=1000, n_embd=128, n_layer=3, n_head=4, n_positions=512),
    'llama': GROUPED,
    'mistral': dict(GROUPED, sliding_window=64),
    'qwen2': GROUPED,
    'qwen3': dict(GROUPED, head_dim=32),
    'gemma': dict(GROUPED, head_dim=32),
    'gemma2': dict(GROUPED, head_dim=32, sliding_window=64),
    'gemma3_text': dict(GROUPED, head_dim=32, sliding_window=64),
    'phi': SMALL,
    'phi3': GROUPED,
    'gpt_neox': SMALL,
    'opt': dict(SMALL, ffn_dim=256, word_embed_proj_dim=128),
    'bloom': dict(vocab_size=1000, hidden_size=128, n_layer=3, n_head=4),
    'falcon': SMALL,
    'stablelm': GROUPED,
    'starcoder2': GROUPED,
    'olmo': GROUPED,
    'olmo2': GROUPED,
    'cohere': GROUPED,
    'granite': GROUPED,
    'smollm3': GROUPED,
    'glm': dict(GROUPED, head_dim=32),
    'gpt_neo': dict(
        vocab_size=1000,
        hidden_size=128,
        num_layers=2,
        num_heads=4,
        attention_types=[[['global', 'local'], 1]],
        max_position_embeddings=512,
    ),
    'codegen': dict(vocab_size=1000, n_embd=128, n_layer=3, n_head=4, n_positions=512, rotary_dim=16),
    'gptj': dict(vocab_size=1000, n_embd=128, n_layer=3, n_head=4, n_positions=512, rotary_dim=16),
}
WAYS = {
    'plain': {},
    'checkpointed': {},
    'ones': {},
    'padded': {},
    'no cache': dict(use_cache=False),
    'eval': {},
    'eager': {},
    'bf16': {},
}


def causal(kind, way, length=256, batch=2):
    import transformers as hf

    def build():
        config = hf.AutoConfig.for_model(kind, **CAUSAL[kind])
        model = hf.AutoModelForCausalLM.from_config(
            config, attn_implementation='eager' if way == 'eager' else None
        )
        if way == 'checkpointed':
            model.gradient_checkpointing_enable()
        return model.eval() if way == 'eval' else model.train()

    def loss(model):
        ids, more = torch.randint(1, 1000, (batch, length)), dict(WAYS[way])
        if way in ('ones', 'padded'):
            more['attention_mask'] = torch.ones_like(ids)
        if way == 'padded':
            more['attention_mask'][:, length // 2 :] = 0
        return model(input_ids=ids, labels=ids, **more).loss

    case(f'transformers {kind}, {way}', build, loss, half=way == 'bf16')


ROUTED = dict(GROUPED, moe_intermediate_size=128, num_experts_per_tok=2, num_experts=8)
CAUSAL |= {
    'mixtral': dict(GROUPED, num_local_experts=8, num_experts_per_tok=2),
    'qwen2_moe': dict(ROUTED, shared_expert_intermediate_size=128),
    'qwen3_moe': dict(ROUTED, head_dim=32),
    'olmoe': dict(ROUTED, eos_token_id=1),
}

for kind in CAUSAL:
    causal(kind, 'plain')
for way in WAYS:
    for kind in (
        ('gpt2', 'llama', 'mistral', 'qwen2', 'gemma', 'phi', 'mixtral', 'qwen3_moe')
        if way != 'plain'
        else ()
    ):
        causal(kind, way)


# --- transformers: others -------------------------------------------------------------------------


def other(name, kind, auto, loss, **config):
    def build():
        import transformers as hf

        return getattr(hf, auto).from_config(hf.AutoConfig.for_model(kind, **config)).train()

    case(f'transformers {name}', build, loss)


def ids(*shape):
    return torch.randint(1, 1000, shape)


def masked(model):
    return model(
        input_ids=ids(2, 128), attention_mask=torch.ones(2, 128, dtype=torch.int64), labels=ids(2, 128)
    ).loss


def translated(model):
    return model(input_ids=ids(2, 96), labels=ids(2, 64)).loss


def labelled(model):
    return model(pixel_values=torch.randn(2, 3, 64, 64), labels=torch.randint(2, (2,))).loss


for kind in ('bert', 'roberta', 'electra', 'albert', 'deberta-v2', 'mpnet'):
    other(kind, kind, 'AutoModelForMaskedLM', masked, **(SMALL | dict(embedding_size=128)))
other(
    'distilbert',
    'distilbert',
    'AutoModelForMaskedLM',
    masked,
    vocab_size=1000,
    dim=128,
    hidden_dim=256,
    n_layers=3,
    n_heads=4,
)
other(
    't5',
    't5',
    'AutoModelForSeq2SeqLM',
    translated,
    vocab_size=1000,
    d_model=128,
    d_kv=32,
    d_ff=256,
    num_layers=2,
    num_heads=4,
    decoder_start_token_id=0,
)
other(
    'bart',
    'bart',
    'AutoModelForSeq2SeqLM',
    translated,
    vocab_size=1000,
    d_model=128,
    encoder_layers=2,
    decoder_layers=2,
    encoder_ffn_dim=256,
    decoder_ffn_dim=256,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    max_position_embeddings=256,
)
for kind in ('vit', 'dinov2'):
    other(
        kind,
        kind,
        'AutoModelForImageClassification',
        labelled,
        image_size=64,
        patch_size=8,
        **{k: v for k, v in SMALL.items() if k not in ('vocab_size', 'pad_token_id')},
    )
other(
    'resnet',
    'resnet',
    'AutoModelForImageClassification',
    labelled,
    embedding_size=16,
    hidden_sizes=[16, 32, 64, 128],
    depths=[1, 1, 1, 1],
)
other(
    'convnext',
    'convnext',
    'AutoModelForImageClassification',
    labelled,
    hidden_sizes=[16, 32, 64, 128],
    depths=[1, 1, 1, 1],
)
other(
    'wav2vec2',
    'wav2vec2',
    'AutoModel',
    lambda m: m(torch.randn(2, 8000)).last_hidden_state.pow(2).mean(),
    hidden_size=128,
    num_hidden_layers=2,
    layerdrop=0.0,
    num_attention_heads=4,
    intermediate_size=256,
    conv_dim=[32] * 7,
    mask_time_prob=0.0,
    num_conv_pos_embedding_groups=4,
    num_conv_pos_embeddings=16,
)
other(
    'whisper',
    'whisper',
    'AutoModelForSpeechSeq2Seq',
    lambda m: m(input_features=torch.randn(2, 80, 200), labels=ids(2, 32)).loss,
    vocab_size=1000,
    d_model=128,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=256,
    decoder_ffn_dim=256,
    max_source_positions=100,
    max_target_positions=64,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    decoder_start_token_id=1,
)
other(
    'mamba',
    'mamba',
    'AutoModelForCausalLM',
    lambda m: m(input_ids=(x := ids(2, 64)), labels=x).loss,
    vocab_size=1000,
    hidden_size=64,
    num_hidden_layers=2,
    state_size=8,
)


# --- peft -----------------------------------------------------------------------------------------


def lora(name, dtype):
    def build():
        import transformers as hf
        from peft import LoraConfig, get_peft_model

        model = hf.AutoModelForCausalLM.from_config(hf.AutoConfig.for_model('llama', **GROUPED), dtype=dtype)
        return get_peft_model(
            model,
            LoraConfig(r=8, target_modules=['q_proj', 'v_proj'], lora_dropout=0.05, task_type='CAUSAL_LM'),
        )

    case(f'peft {name}', build, lambda m: m(input_ids=(x := ids(2, 256)), labels=x).loss)


lora('LoRA of a Llama', torch.float32)
lora('LoRA of a Llama in bf16', torch.bfloat16)


# --- images ---------------------------------------------------------------------------------------


def classified(model):
    return F.cross_entropy(
        out if torch.is_tensor(out := model(torch.randn(2, 3, model.size, model.size))) else out.logits,
        torch.randint(10, (2,)),
    )


def image(package, make, name, size=64, **kw):
    def build():
        model = make(name, **kw).train()
        model.size = size
        return model

    case(f'{package} {name}', build, classified, functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9))


def of_timm(name, **kw):
    return importlib.import_module('timm').create_model(name, num_classes=10, **kw)


def of_torchvision(name, **kw):
    return importlib.import_module('torchvision').models.get_model(name, num_classes=10, **kw)


for name in (
    'resnet18',
    'resnet26d',
    'efficientnet_b0',
    'mobilenetv3_small_100',
    'convnext_atto',
    'regnetx_002',
    'densenet121',
    'ghostnet_100',
    'repvgg_a0',
    'hrnet_w18_small',
    'edgenext_xx_small',
    'mobileone_s0',
    'fastvit_t8',
    'poolformer_s12',
    'resnext26ts',
    'lambda_resnet26t',
    'dla34',
    'res2net50_26w_4s',
    'tf_efficientnetv2_b0',
    'nf_resnet26',
):
    image('timm', of_timm, name)
for name in (
    'vit_tiny_patch16_224',
    'deit_tiny_patch16_224',
    'mixer_s32_224',
    'gmlp_ti16_224',
    'resmlp_12_224',
    'xcit_nano_12_p16_224',
    'cait_xxs24_224',
    'beit_base_patch16_224',
):
    image('timm', of_timm, name, img_size=64)
for name in ('swin_tiny_patch4_window7_224', 'pit_ti_224', 'levit_128s', 'crossvit_tiny_240'):
    image('timm', of_timm, name, 240 if '240' in name else 224)
for name in (
    'resnet18',
    'vgg11',
    'alexnet',
    'squeezenet1_1',
    'mobilenet_v2',
    'shufflenet_v2_x0_5',
    'mnasnet0_5',
    'regnet_y_400mf',
    'efficientnet_b0',
    'convnext_tiny',
    'swin_t',
    'vit_b_32',
):
    image('torchvision', of_torchvision, name, 224 if name in ('alexnet', 'vit_b_32') else 64)


# --- diffusers ------------------------------------------------------------------------------------


def diffusion(name, kind, loss, **config):
    case(f'diffusers {name}', lambda: getattr(importlib.import_module('diffusers'), kind)(**config), loss)


def noised(*shape, **more):
    def loss(model):
        x = torch.randn(shape)
        return F.mse_loss(
            model(x, torch.randint(1000, shape[:1]), **{k: v() for k, v in more.items()}).sample[
                :, : shape[1]
            ],
            torch.randn(shape),
        )

    return loss


diffusion(
    'UNet2D',
    'UNet2DModel',
    noised(2, 3, 32, 32),
    sample_size=32,
    block_out_channels=(32, 64),
    down_block_types=('DownBlock2D', 'AttnDownBlock2D'),
    up_block_types=('AttnUpBlock2D', 'UpBlock2D'),
)
diffusion(
    'UNet2DCondition',
    'UNet2DConditionModel',
    noised(2, 4, 16, 16, encoder_hidden_states=lambda: torch.randn(2, 77, 64)),
    sample_size=16,
    block_out_channels=(32, 64),
    cross_attention_dim=64,
    down_block_types=('CrossAttnDownBlock2D', 'DownBlock2D'),
    up_block_types=('UpBlock2D', 'CrossAttnUpBlock2D'),
    attention_head_dim=8,
)
diffusion(
    'DiT',
    'DiTTransformer2DModel',
    noised(2, 4, 16, 16, class_labels=lambda: torch.randint(10, (2,))),
    num_attention_heads=4,
    attention_head_dim=32,
    in_channels=4,
    out_channels=8,
    num_layers=2,
    sample_size=16,
    patch_size=2,
    num_embeds_ada_norm=1000,
)
diffusion(
    'AutoencoderKL',
    'AutoencoderKL',
    lambda m: m(torch.randn(2, 3, 32, 32)).sample.pow(2).mean(),
    block_out_channels=(32, 64),
    down_block_types=('DownEncoderBlock2D',) * 2,
    up_block_types=('UpDecoderBlock2D',) * 2,
)
diffusion(
    'VQModel',
    'VQModel',
    lambda m: m(torch.randn(2, 3, 32, 32)).sample.pow(2).mean(),
    block_out_channels=(32, 64),
    down_block_types=('DownEncoderBlock2D',) * 2,
    up_block_types=('UpDecoderBlock2D',) * 2,
)


# --- torch ----------------------------------------------------------------------------------------


def plain(name, build, *shape, use=lambda m, x: m(x), half=False):
    def squares(model):
        out = use(model, torch.randn(shape))
        return (out if torch.is_tensor(out) else out[0]).pow(2).mean()

    case(f'torch {name}', build, squares, half=half)


for layers in (1, 2):
    plain(
        f'LSTM, {layers} layers', lambda layers=layers: nn.LSTM(64, 96, layers, batch_first=True), 8, 128, 64
    )
plain('LSTM, both ways', lambda: nn.LSTM(64, 96, bidirectional=True), 256, 4, 64)
plain('LSTM with dropout', lambda: nn.LSTM(64, 96, 2, dropout=0.2), 128, 4, 64)
plain('GRU', lambda: nn.GRU(64, 96, 2, batch_first=True), 8, 64, 64)
plain('RNN', lambda: nn.RNN(64, 96, 2, batch_first=True), 8, 64, 64)
plain(
    'Transformer',
    lambda: nn.Transformer(64, 4, 2, 2, 128, batch_first=True),
    4,
    64,
    64,
    use=lambda m, x: m(x, x),
)
plain(
    'TransformerEncoder',
    lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 256, batch_first=True), 3),
    4,
    128,
    64,
)
plain(
    'MultiheadAttention with weights',
    lambda: nn.MultiheadAttention(64, 4, batch_first=True),
    4,
    128,
    64,
    use=lambda m, x: m(x, x, x),
)
plain(
    'MultiheadAttention',
    lambda: nn.MultiheadAttention(64, 4, batch_first=True),
    4,
    128,
    64,
    use=lambda m, x: m(x, x, x, need_weights=False),
)
plain(
    'convolutions in 3D',
    lambda: nn.Sequential(
        nn.Conv3d(3, 8, 3), nn.BatchNorm3d(8), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(8, 16, 3)
    ),
    2,
    3,
    16,
    16,
    16,
)
plain(
    'transposed convolutions',
    lambda: nn.Sequential(
        nn.ConvTranspose2d(16, 8, 4, 2, 1),
        nn.InstanceNorm2d(8),
        nn.ReLU(),
        nn.ConvTranspose2d(8, 3, 4, 2, 1),
        nn.Tanh(),
    ),
    4,
    16,
    16,
    16,
)
plain(
    'convolutions in bf16',
    lambda: nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.SiLU(), nn.Conv2d(32, 32, 3, padding=1)
    ),
    4,
    3,
    32,
    32,
    half=True,
)
plain(
    'depthwise convolutions',
    lambda: nn.Sequential(
        nn.Conv2d(32, 32, 3, groups=32),
        nn.Conv2d(32, 64, 1),
        nn.PReLU(),
        nn.PixelShuffle(2),
        nn.Upsample(scale_factor=2, mode='bilinear'),
    ),
    4,
    32,
    24,
    24,
)


def run(name):
    "A row of the table: bytes simulated and measured, or why not"
    torch.manual_seed(0)
    row, at = dict(name=name), time.process_time()
    try:
        told = simulate(*CASES[name])
        row.update(simulated=told.peak, notes=list(told.notes), seconds=round(time.process_time() - at, 2))
    except MemtrainError as e:
        row.update(refused=str(e))
    row['measured'] = measure_step(*CASES[name]).peak
    return row


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--only', help='names with this text; nothing is written')
    args = parser.parse_args()
    warnings.simplefilter('ignore')
    rows = [
        run(name) for name in progress([n for n in CASES if not args.only or args.only in n], desc='steps')
    ]
    off = {
        r['name']: r['simulated'] / r['measured'] - 1
        for r in rows
        if 'simulated' in r and not any('real run' in note for note in r['notes'])
    }
    for r in sorted(rows, key=lambda r: -abs(off.get(r['name'], 9))):
        error = f"{off[r['name']]:+.4%}" if r['name'] in off else 'not simulated'
        print(
            f"{error:>14} {format_size(r['measured']):>10}  {r['name']} "
            f" {'; '.join(r.get('notes', [])) or r.get('refused', '')}"
        )
    sizes = sorted(map(abs, off.values()))
    summary = dict(
        steps=len(rows),
        simulated=len(off),
        median=statistics.median(sizes),
        worst=sizes[-1],
        exact=sum(e == 0 for e in sizes),
        above_one_percent=sum(e > 0.01 for e in sizes),
    )
    print(summary)
    if not args.only:
        versions = {
            p: importlib.metadata.version(p)
            for p in ('torch', 'transformers', 'timm', 'diffusers', 'torchvision', 'peft')
        }
        save_result(
            'simulate_models',
            dict(rows=rows, summary=summary, versions=versions),
            'benchmarks/simulate_models.py',
        )


if __name__ == '__main__':
    main()
