"""The ways to relax a mini-batch on the GPU, one file each: host code and kernels."""
