"""The fused kernel for GPUs, in Triton."""
