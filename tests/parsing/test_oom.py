"""Failed allocations: every figure of every generation, whose memory it was, and in which phase it happened."""

from __future__ import annotations

import pytest

from vllm_doctor.model.observations import Clock, Scalar
from vllm_doctor.parsing import log, oom, tracebacks
from vllm_doctor.ruleset.load import load

FORMATS = load().formats
GIB, MIB = 2**30, 2**20
START = "CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 40.00 GiB of which 1.00 GiB is free. "
HELD = "Of the allocated memory 30.00 GiB is allocated by PyTorch, and 2.00 GiB is reserved by PyTorch but unallocated."


def others(text: str) -> Scalar | None:
    found = oom.allocator(START + text + HELD)
    assert found is not None
    return found.get("oom.other_processes")


def test_the_oldest_wording_states_what_is_reserved_in_all() -> None:
    text = (
        "CUDA out of memory. Tried to allocate 136.00 MiB (GPU 1; 24.00 GiB total capacity; 22.00 GiB already allocated; 102.00 MiB free; "
        "23.50 GiB allowed; 22.50 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try"
    )
    assert oom.allocator(text) == {
        "oom.source": "allocator",
        "oom.device": "CUDA",
        "oom.requested": 136 * MIB,
        "oom.gpu": 1,
        "oom.total": 24 * GIB,
        "oom.allocated": 22 * GIB,
        "oom.free": 102 * MIB,
        "oom.reserved_unallocated": GIB // 2,
    }


def test_named_processes_are_others_where_the_message_tells_this_one_apart() -> None:
    named = "Process 1 has 3.00 GiB memory in use. Process 2 has 1.00 GiB memory in use. "
    assert others(named + "Including non-PyTorch memory, this process has 33.00 GiB memory in use. ") == 4 * GIB


def test_a_single_named_process_that_could_be_this_one_says_nothing_on_others() -> None:
    assert others("Process 44019 has 38.50 GiB memory in use. ") is None


def test_a_process_that_holds_less_than_pytorch_does_here_is_another() -> None:
    assert others("Process 44019 has 6.00 GiB memory in use. ") == 6 * GIB


def test_among_several_processes_the_only_one_large_enough_is_this_one() -> None:
    assert others("Process 1 has 33.00 GiB memory in use. Process 2 has 5.00 GiB memory in use. ") == 5 * GIB


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("RuntimeError: CUDA error: out of memory", {"oom.source": "driver", "oom.device": "CUDA"}),
        ("RuntimeError: CUDA driver error: out of memory", {"oom.source": "driver", "oom.device": "CUDA"}),
        ("CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62", {"oom.source": "driver", "oom.device": "CUDA"}),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", {"oom.source": "driver", "oom.device": "CUDA"}),
        ("ncclUnhandledCudaError: Call failed. Last error: Cuda failure 2 'out of memory'", {"oom.source": "driver", "oom.device": "CUDA"}),
        ("RuntimeError: HIP error: out of memory", {"oom.source": "driver", "oom.device": "HIP"}),
        ("OSError: [Errno 12] Cannot allocate memory", {"oom.source": "host", "oom.device": "CPU"}),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", None),
        ("triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 180224", None),
    ],
)
def test_driver_and_host_failures_have_no_sizes(text: str, want: dict[str, Scalar] | None) -> None:
    assert oom.other(text) == want


def phase(*calls: str) -> str:
    frames = tuple(tracebacks.Frame(*call.split(":")) for call in calls)
    return tracebacks.phase(frames)[0]


def test_the_outermost_phase_function_decides_and_inner_ones_refine_it() -> None:
    worker, runner = "/x/vllm/v1/worker/gpu_worker.py", "/x/vllm/v1/worker/gpu_model_runner.py"
    model = "/x/vllm/model_executor/models/llama.py:forward"
    assert phase(f"{worker}:load_model", f"{runner}:load_model", "/x/vllm/model_executor/layers/linear.py:create_weights") == "weights"
    assert phase(f"{worker}:determine_available_memory", f"{runner}:profile_run", f"{runner}:_dummy_run", model) == "profile"
    assert phase(f"{worker}:determine_available_memory", f"{runner}:profile_run", f"{runner}:_dummy_sampler_run") == "sampler"
    assert (
        phase(f"{worker}:determine_available_memory", f"{runner}:profile_run", "/x/vllm/model_executor/models/a.py:get_multimodal_embeddings")
        == "encoder"
    )
    assert phase(f"{worker}:initialize_from_config", f"{runner}:initialize_kv_cache_tensors") == "kv_alloc"
    assert (
        phase("/x/vllm/v1/executor/abstract.py:initialize_from_config", f"{worker}:compile_or_warm_up_model", f"{runner}:capture_model", model)
        == "graphs"
    )
    assert phase("/x/vllm/v1/engine/core.py:run_busy_loop", f"{runner}:execute_model", model) == "forward"
    assert phase("/x/vllm/v1/engine/core.py:run_busy_loop", f"{runner}:execute_model", "/x/vllm/v1/sample/sampler.py:forward") == "sampler"
    assert phase(f"{runner}:execute_model", f"{runner}:_execute_mm_encoder") == "encoder"
    assert phase("/x/torch/nn/modules/module.py:_call_impl") == "unknown"


TRACE = """\
(EngineCore pid=3) ERROR 07-02 14:30:21 [core.py:710] Traceback (most recent call last):
(Worker_TP1 pid=4) INFO 07-02 14:30:21 [x.py:1] something else
(EngineCore pid=3) ERROR 07-02 14:30:21 [core.py:710]   File "/x/vllm/v1/worker/gpu_model_runner.py", line 2090, in execute_model
(EngineCore pid=3) ERROR 07-02 14:30:21 [core.py:710]     return self.model(x)
INFO:     127.0.0.1:51514 - "POST /v1/completions HTTP/1.1" 200 OK
(EngineCore pid=3) ERROR 07-02 14:30:21 [core.py:710] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB.
"""


def test_the_phase_comes_from_the_traceback_although_other_processes_write_into_it() -> None:
    part = log.fold(TRACE.encode(), "s", Clock(2026), FORMATS).parts[0]
    [event] = part.events["oom"].events
    assert event.values == {
        "oom.source": "allocator",
        "oom.device": "CUDA",
        "oom.requested": 2 * MIB,
        "oom.phase": "forward",
        "oom.frame": "vllm/v1/worker/gpu_model_runner.py:execute_model",
    }
    assert (event.ref.line, event.process, len(event.ref.before)) == (6, "EngineCore", 2)


def test_an_error_announced_above_its_traceback_takes_the_phase_from_it() -> None:
    text = """\
ERROR 04-06 00:44:23 [engine.py:160] OutOfMemoryError('CUDA out of memory. Tried to allocate 6.25 GiB.')
ERROR 04-06 00:44:23 [engine.py:160] Traceback (most recent call last):
ERROR 04-06 00:44:23 [engine.py:160]   File "/x/vllm/model_executor/layers/sampler.py", line 286, in forward
"""
    [event] = log.fold(text.encode(), "s", Clock(2026), FORMATS).parts[0].events["oom"].events
    assert event.values["oom.phase"] == "sampler"


def test_a_worker_that_names_its_method_gives_the_phase_without_frames() -> None:
    text = (
        "(VllmWorkerProcess pid=9) ERROR 09-01 10:00:00 multiproc_worker_utils.py:233] Exception in worker VllmWorkerProcess while processing "
        "method determine_num_available_blocks: CUDA out of memory. Tried to allocate 2.00 GiB. , Traceback (most recent call last):"
    )
    [event] = log.fold(text.encode(), "s", Clock(2026), FORMATS).parts[0].events["oom"].events
    assert event.values["oom.phase"] == "profile"
