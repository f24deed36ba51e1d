#| export
import hashlib, logging
from functools import cache
from importlib import import_module
from itertools import chain
from typing import Any, Callable, Iterable

import torch

from memtrain.core import MemtrainError


#| exports
def _import_8bit():
    "The module `bitsandbytes.optim`, without the warnings it greets with"
    log = logging.getLogger('bitsandbytes.backends.cpu.ops')  # it misses a kernel for 4-bit layers, of which there are none here
    level = log.level
    log.setLevel(logging.ERROR)
    try: return import_module('bitsandbytes.optim')
    except (ImportError, OSError, RuntimeError) as e:  # the latter two: no library for this machine in it
        raise MemtrainError(f"8-bit states need bitsandbytes, which can't be imported ({str(e).splitlines()[0]}): "
                            f"pip install bitsandbytes, or train without") from None
    finally: log.setLevel(level)


#| exports
_BLOCK, _SLICE = 256, 2**18  # numbers that share a scale; numbers that are updated at a time, some 5 MB of temporaries

def _update_slices(opt, p, c):
    "What `update_step` of the bitsandbytes optimizer `opt` does to `p`, settings `c`, slice by slice"
    s = opt.state[p]
    p.data, p.grad = p.data.contiguous(), p.grad.contiguous()  # as bitsandbytes does
    s |= {k: s[k].contiguous() for k in ('state1', 'state2') if k in s}  # they were made in the strides that `p` had
    s['step'] += 1
    w, g, *moments = (None if t is None else t.view(-1) for t in (p.data, p.grad, s['state1'], s.get('state2')))
    betas = (*c['betas'], 0.0)[:3]
    for at in range(0, w.numel(), _SLICE):
        def cut(t, by=1): return None if t is None else t[at//by:(at + _SLICE)//by]
        torch.ops.bitsandbytes.optimizer_update_8bit_blockwise(
            opt.optimizer_name, cut(g), cut(w), *map(cut, moments), *betas, c.get('alpha') or 0.0, c['eps'], s['step'], c['lr'], s['qmap1'], s.get('qmap2'),
            cut(s['absmax1'], _BLOCK), cut(s.get('absmax2'), _BLOCK), c['weight_decay'], 1.0, c['skip_zeros'])


#| export
@cache
def _sliced(base):
    "A subclass of the bitsandbytes optimizer `base` that updates slices on the CPU"
    class Sliced(base):
        __doc__ = f'`{base.__name__}` of bitsandbytes; on the CPU its updates are made slice by slice, bit-identical'
        def update_step(self, group, p, gindex, pindex):
            _check_gradient(p)
            if p.device.type != 'cpu' or self.state[p]['state1'].dtype != torch.uint8: return super().update_step(group, p, gindex, pindex)
            _update_slices(self, p, self.get_config(gindex, pindex, group))
    Sliced.__name__ = Sliced.__qualname__ = base.__name__
    return Sliced

def _check_gradient(p):
    "A one-line error for a gradient that isn't dense"
    if p.grad.layout != torch.strided: raise MemtrainError(f'the gradient of a parameter of shape {tuple(p.shape)} is sparse: make its layer with sparse=False')

def _all_params(optimizer):
    "The parameters of `optimizer`, in the order of its state dict"
    return list(chain.from_iterable(g['params'] for g in optimizer.param_groups))


#| exports
_NAMES_8BIT = {'adamw': 'AdamW8bit', 'lion': 'Lion8bit'}

def make_8bit(
    kind: str,  # 'adamw', two moments; or 'lion', one: it wants a learning rate 3 to 10 times lower, and as much more weight decay
    params: Iterable,  # parameters, or groups of them, float32, bfloat16 or float16
    lr: float,  # learning rate
    betas: tuple[float, float],  # how much of the moments stays at each step
    weight_decay: float = 0.0,  # decoupled; a group may have its own
    paged: bool = False,  # states in memory that CUDA moves to RAM when the GPU is full
) -> torch.optim.Optimizer:  # a subclass of bitsandbytes' own
    "The `kind` of optimizer for `params`, with states of 8 bits"
    if kind not in _NAMES_8BIT: raise MemtrainError(f"kind={kind!r}: take one of {', '.join(_NAMES_8BIT)}")
    base = getattr(_import_8bit(), _NAMES_8BIT[kind])
    try: made = _sliced(base)(params, lr=lr, betas=betas, weight_decay=weight_decay, is_paged=paged)
    except (ValueError, TypeError) as e: raise MemtrainError(f'8-bit {kind}: {str(e).splitlines()[0]}') from None
    for p in _all_params(made):
        if hasattr(p, 'to_local'): raise MemtrainError('8-bit states are kept for whole tensors, not for shards of them: take AdamW or BF16AdamW with FSDP')
        if paged and p.device.type != 'cuda':
            raise MemtrainError(f'paged=True: paged states lie on a GPU, and there is a parameter on {p.device}: leave paged out, or move the model to cuda first')
    return made


#| exports
def round_stochastically(
    x: torch.Tensor,  # float32, any shape
    noise: torch.Tensor,  # int32 from 0 to 65535, in the shape of `x`, each as likely
) -> torch.Tensor:  # bfloat16
    "`x` in bfloat16, one of its two neighbours in it, so that `noise` decides and the expected value is `x`"
    bits = (x.view(torch.int32) + noise).bitwise_and_(-65536)
    return torch.where(x.isnan(), x, bits.view(torch.float32)).bfloat16()


#| exports
def _generator(p, *key):
    "The generator of noise for the parameter `p` at `key`"
    if hasattr(p, 'to_local'): key += tuple(n for n, at in zip(p.device_mesh.get_coordinate(), p.placements) if at.is_shard())
    seed = int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=7).digest())
    return torch.Generator(p.device).manual_seed(seed)

def _noise(n, generator):
    "Three tensors of `n` random numbers of 16 bits, int32"
    lanes = torch.empty(n, dtype=torch.int64, device=generator.device).random_(generator=generator).view(torch.int16).view(n, 4)
    return (lanes[:, i].int().bitwise_and_(65535) for i in range(3))  # the fourth has only 15: the sign is 0


#| exports
class BF16AdamW(torch.optim.Optimizer):
    "AdamW for bfloat16 parameters: their updates are rounded stochastically, or made on float32 copies of them"
    def __init__(self,
        params: Iterable,  # parameters, or groups of them: bfloat16, or float32, which get torch's AdamW
        lr: float = 1e-3,  # learning rate
        betas: tuple[float, float] = (0.9, 0.999),  # how much of the moments stays at each step
        eps: float = 1e-8,  # added to the root of the second moment
        weight_decay: float = 1e-2,  # decoupled
        rounding: str = 'stochastic',  # all of the state bfloat16; or 'master': float32 moments, and a float32 copy of each weight
        seed: int = 0,  # of the noise
    ):
        for name, n in (('lr', lr), ('eps', eps), ('weight_decay', weight_decay)):
            if not 0 <= n < float('inf'): raise MemtrainError(f'{name}={n!r}: give a number, 0 or more')
        if len(betas) != 2 or not all(0 <= b < 1 for b in betas): raise MemtrainError(f'betas={betas!r}: give two numbers from 0 up to, but not, 1')
        super().__init__(params, dict(lr=lr, betas=tuple(betas), eps=eps, weight_decay=weight_decay, rounding=rounding, seed=seed))

    def add_param_group(self,
        param_group: dict,  # `params`, and settings that are its own
    ) -> None:
        "Add `param_group`, whose parameters have to be bfloat16 or float32"
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        if group['rounding'] not in ('stochastic', 'master'): raise MemtrainError(f"rounding={group['rounding']!r}: take 'stochastic' or 'master'")
        for p in group['params']:
            if p.dtype not in (torch.bfloat16, torch.float32):
                raise MemtrainError(f'a parameter of shape {tuple(p.shape)} is {p.dtype}: BF16AdamW takes bfloat16 and float32, convert it')

    @torch.no_grad()
    def step(self,
        closure: Callable | None = None,  # computes the loss once more
    ) -> Any:  # what `closure` gives
        "Update every parameter that has a gradient"
        with torch.enable_grad(): loss = closure() if closure else None
        index = 0
        for group in self.param_groups:
            for p in group['params']:
                if p.grad is not None: _update(p, self.state[p], group, index)
                index += 1
        return loss

    def load_state_dict(self,
        state_dict: dict,  # of an optimizer with the same `rounding`
    ) -> None:
        "Take the settings and states of `state_dict`, each in its own dtype"
        _check_rounding(self, state_dict)
        super().load_state_dict(state_dict)
        for old, p in zip(chain.from_iterable(g['params'] for g in state_dict['param_groups']), _all_params(self)):
            for k, v in state_dict['state'].get(old, {}).items():
                if torch.is_tensor(v): self.state[p][k] = v.detach().to(p.device, copy=True)  # torch has made it the dtype of `p`


#| export
def _check_rounding(opt, state_dict):
    "A one-line error for a `state_dict` that isn't of a BF16AdamW such as `opt`"
    for mine, theirs in zip(opt.param_groups, state_dict['param_groups']):
        if mine['rounding'] != theirs.get('rounding'):
            raise MemtrainError(f"this BF16AdamW has rounding={mine['rounding']!r}, the saved state has {theirs.get('rounding', 'another optimizer')!r}: make it as it was saved")


#| exports
_SLICE_CUDA = 2**22  # on a GPU: a slice is some thirty kernels, which take as long as this many numbers

def _update(p, s, group, index):
    "One step for the parameter `p` with the state `s`"
    _check_gradient(p)
    if not s: _start(p, s, group['rounding'])
    s['step'] += 1
    old = s.get('master', p)
    w, g, m, v = (_row(t) for t in (old, p.grad, s['exp_avg'], s['exp_avg_sq']))
    step, generator = torch.full((), float(s['step']), device=w.device), None
    if m.dtype == torch.bfloat16: generator = _generator(p, group['seed'], s['step'], index)
    size = max(1, w.numel()) if g.dtype == torch.float32 else _SLICE if w.device.type == 'cpu' else _SLICE_CUDA
    for at in range(0, w.numel(), size): _update_slice([t[at:at + size] for t in (w, g, m, v)], step, group, generator)
    if not _local(old).is_contiguous(): _local(old).copy_(w.view(_local(old).shape))
    if old is not p: p.copy_(old)

def _update_slice(parts, step, group, generator):
    "AdamW in float32 on slices of weight, gradient and moments; back to bfloat16 with the noise of `generator` if there is one"
    w, g, m, v = (t.float() for t in parts)  # those that are float32 already aren't copied
    torch._fused_adamw_([w], [g], [m], [v], [], [step], lr=float(group['lr']), beta1=group['betas'][0], beta2=group['betas'][1],
                        weight_decay=group['weight_decay'], eps=group['eps'], amsgrad=False, maximize=False)
    if generator is None: return
    del g
    for part, new, noise in zip((parts[0], *parts[2:]), (w, m, v), _noise(len(w), generator)): part.copy_(round_stochastically(new, noise))


#| export
def _start(p, s, rounding):
    "The first state of `p`"
    master = rounding == 'master' and p.dtype == torch.bfloat16
    if master: s['master'] = p.detach().float().contiguous()
    def zeros(): return torch.zeros_like(p, dtype=torch.float32 if master else p.dtype, memory_format=torch.contiguous_format)
    s |= {'step': 0, 'exp_avg': zeros(), 'exp_avg_sq': zeros()}

def _local(t): return t.to_local() if hasattr(t, 'to_local') else t  # of FSDP2's tensors, this rank's shard

def _row(t): return _local(t).detach().contiguous().view(-1)


#| exports
class InBackward:
    "Hooks that have `optimizer` update each parameter during the backward pass, until `remove` is called"
    def __init__(self,
        optimizer: torch.optim.Optimizer,  # any that passes over parameters without a gradient
    ):
        params = [p for p in _all_params(optimizer) if p.requires_grad]
        if getattr(optimizer, '_in_backward', None): raise MemtrainError('this optimizer steps in the backward pass already: remove the earlier handle first')
        if any(p.grad is not None for p in params): raise MemtrainError('there are gradients from an earlier backward pass: call optimizer.zero_grad() before step_in_backward')
        self.optimizer, self.hooks = optimizer, [p.register_post_accumulate_grad_hook(self._update) for p in params]
        optimizer._in_backward = True

    def _update(self, p):
        self.optimizer.step()  # there is only this gradient
        p.grad = None

    def remove(self) -> None:
        "Back to plain steps"
        for h in self.hooks: h.remove()
        self.hooks, self.optimizer._in_backward = [], False

def step_in_backward(
    optimizer: torch.optim.Optimizer,  # any that passes over parameters without a gradient: torch's, bitsandbytes', `BF16AdamW`
) -> InBackward:  # has `remove()`
    "Have `optimizer` update each parameter when its gradient is complete, and drop the gradient; `loss.backward()` is then the whole step"
    return InBackward(optimizer)

