"""Until the face of PyTorch has attention."""
import torch, numpy as np
from ..attention import attention as _f, attention_backward as _b
from ..torch import memory
class _A(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q,k,v,mask,bias,sinks,o):
        a=memory.array; opt=memory.optional
        kw=dict(o, mask=opt(mask), bias=opt(bias), sinks=opt(sinks))
        r=_f(a(q),a(k),a(v),return_lse=True,**kw)
        ctx.save_for_backward(q,k,v,mask,bias,sinks); ctx.o=o; ctx.r=r
        return memory.tensor(r.output), memory.tensor(r.lse)
    @staticmethod
    def backward(ctx, do, dlse):
        q,k,v,mask,bias,sinks=ctx.saved_tensors
        a=memory.array; opt=memory.optional
        g=_b(a(do),a(q),a(k),a(v),ctx.r.output,ctx.r.lse,dlse=opt(dlse),bias_grad=ctx.needs_input_grad[4],mask=opt(mask),bias=opt(bias),sinks=opt(sinks),**ctx.o)
        t=lambda x,like: None if x is None else memory.tensor(x).to(like.dtype)
        return t(g.q,q),t(g.k,k),t(g.v,v),None,t(g.bias,bias),t(g.sinks,sinks),None
def attention(q,k,v,*,mask=None,bias=None,scale=None,causal=False,causal_align="lower_right",window=None,softcap=None,sinks=None,dropout_p=0.0,return_lse=False):
    o=dict(scale=scale,causal=causal,causal_align=causal_align,window=window,softcap=softcap,dropout_p=dropout_p,seed=int(torch.randint(0,2**31,()).item()) if dropout_p else 0)
    out,lse=_A.apply(q,k,v,mask,bias,sinks,o)
    return (out,lse) if return_lse else out
