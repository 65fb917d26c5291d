"""Changes to vLLM and Triton with which the model runner V2 runs on a CPU. None changes an output."""

import itertools

import numpy as np
import torch


def register():
    """Apply them, in every process of vLLM."""
    keep_asynchronous_scheduling()
    make_masks_boolean()
    verify_greedy_drafts_in_torch()
    choose_by_top_k_and_top_p_in_torch()


def keep_asynchronous_scheduling():
    """Let the user's choice stand: vLLM's platform for CPUs switches asynchronous scheduling off."""
    from vllm.platforms.cpu import CpuPlatform

    check = CpuPlatform.check_and_update_config.__func__
    if getattr(check, "is_patched", False):
        return

    def check_and_update_config(cls, vllm_config):
        wanted = vllm_config.scheduler_config.async_scheduling
        check(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = wanted

    check_and_update_config.is_patched = True
    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)


def make_masks_boolean():
    """Convert the masks of Triton's interpreter, where ``a & b`` of two masks may have another type."""
    from triton.runtime.interpreter import InterpreterBuilder

    if getattr(InterpreterBuilder, "is_patched", False):
        return
    InterpreterBuilder.is_patched = True
    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

    def boolean(mask):
        if mask is not None and mask.data.dtype != np.bool_:
            mask.data = mask.data.astype(np.bool_)
        return mask

    def masked_load(self, pointers, mask, *rest, **options):
        return load(self, pointers, boolean(mask), *rest, **options)

    def masked_store(self, pointers, values, mask, *rest, **options):
        return store(self, pointers, values, boolean(mask), *rest, **options)

    InterpreterBuilder.create_masked_load = masked_load
    InterpreterBuilder.create_masked_store = masked_store


def verify_greedy_drafts_in_torch():
    """Verify greedy requests with torch: interpreted, the two kernels take two thirds of a step."""
    import vllm.v1.worker.gpu.spec_decode.rejection_sampler as sampler

    interpreted = sampler.rejection_sample
    if getattr(interpreted, "is_patched", False):
        return

    def rejection_sample(logits, draft_logits, drafts, ends, positions, rows, *rest, **options):
        # rest: rows of the tokens, positions of the tokens, temperature, seed, number of draft tokens, ...
        temperature, num_draft_tokens = rest[2], rest[4]
        is_plain = len(rest) == 5 or rest[5] is None
        if not is_plain or bool((temperature[rows] != 0).any()):
            return interpreted(logits, draft_logits, drafts, ends, positions, rows, *rest, **options)
        best, bounds = logits.argmax(-1), ends.tolist()
        sampled = torch.zeros((len(bounds) - 1, num_draft_tokens + 1), dtype=torch.int64)
        num_sampled = torch.zeros(len(bounds) - 1, dtype=torch.int32)
        for row, (begin, end) in enumerate(itertools.pairwise(bounds)):
            chosen = best[begin:end]
            num_accepted = int((chosen[:-1] == drafts[begin + 1 : end]).int().cumprod(0).sum())
            sampled[row, : num_accepted + 1] = chosen[: num_accepted + 1]
            num_sampled[row] = num_accepted + 1
        return sampled, num_sampled

    rejection_sample.is_patched = True
    sampler.rejection_sample = rejection_sample


def choose_by_top_k_and_top_p_in_torch():
    """Use vLLM's version in torch: the interpreter can't run the kernel, whose loop variable is an int."""
    import vllm.v1.sample.ops.topk_topp_sampler as sampler

    sampler.HAS_TRITON = False
