import torch
from ..linear_losses import linear_cross_entropy as _f, linear_cross_entropy_backward as _b
from ..torch import memory
import numpy as np
class _L(torch.autograd.Function):
    @staticmethod
    def forward(ctx,h,w,b,t,o):
        a=memory.array; opt=memory.optional
        ctx.save_for_backward(h,w,b,t); ctx.o=o
        return memory.tensor(np.asarray(_f(a(h),a(w),a(t),bias=opt(b),**o)))
    @staticmethod
    def backward(ctx,d):
        h,w,b,t=ctx.saved_tensors
        a=memory.array; opt=memory.optional
        g=_b(a(d),a(h),a(w),a(t),bias=opt(b),**ctx.o)
        return memory.tensor(g.hidden),memory.tensor(g.weight),None if b is None else memory.tensor(g.bias),None,None
def linear_cross_entropy(h,w,t,*,bias=None,**o):
    return _L.apply(h,w,bias,t,o)
