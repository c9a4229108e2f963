"""Tunable kernels: their manifests, builds, verification and publication."""
