"""One table says what an event is, whoever's device wrote it."""

from __future__ import annotations

from pathlib import Path

import pytest
from device_traces import call, frame_of, kernel, measured, span, written

from sameshot.analysis import names
from sameshot.analysis.names import Cat, category


@pytest.mark.parametrize(
    ("cat", "name", "kind"),
    [
        # NVIDIA
        ("cuda_runtime", "cudaLaunchKernel", Cat.RUNTIME),
        ("cuda_driver", "cuLaunchKernel", Cat.RUNTIME),
        ("kernel", "volta_sgemm_128x32_nt", Cat.KERNEL),
        ("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", Cat.MEMORY),
        ("gpu_memset", "Memset (Device)", Cat.MEMORY),
        ("cuda_sync", "Stream Sync", Cat.SYNC),
        # AMD writes its calls as cuda_runtime
        ("cuda_runtime", "hipExtModuleLaunchKernel", Cat.RUNTIME),
        # Intel
        ("xpu_runtime", "urEnqueueKernelLaunch", Cat.RUNTIME),
        ("xpu_driver", "zeCommandListAppendLaunchKernel", Cat.RUNTIME),
        ("xpu_sync", "zeEventHostSynchronize", Cat.SYNC),
        # MTIA
        ("mtia_runtime", "runFunction - job_prep_and_submit_for_execution", Cat.RUNTIME),
        ("mtia_ccp_events", "hccl::all_reduce", Cat.KERNEL),
        ("mtia_ccp_events", "event_wait", Cat.SYNC),
        ("mtia_ccp_events", "event_record", Cat.SYNC),
        ("mtia_ccp_events", "dma_request", Cat.MEMORY),
        ("kernel", "dma_request", Cat.KERNEL),
        # Habana and other backends
        ("hpu_op", "launch", Cat.RUNTIME),
        ("privateuse1_runtime", "launch", Cat.RUNTIME),
        ("privateuse1_driver", "launch", Cat.RUNTIME),
        # older traces
        ("Kernel", "gemm", Cat.KERNEL),
        ("Memcpy", "Memcpy DtoD (Device -> Device)", Cat.MEMORY),
        ("Memset", "Memset (Device)", Cat.MEMORY),
        ("Runtime", "cudaLaunchKernel", Cat.RUNTIME),
        ("Operator", "aten::mm", Cat.OPERATOR),
    ],
)
def test_an_event_lands_in_the_table_of_its_kind(tmp_path: Path, cat: str, name: str, kind: Cat) -> None:
    frame = frame_of(written(tmp_path, span(cat, name, 1, 2, 0, 0, correlation=1)))
    assert {each: len(frame.rows(each)) for each in Cat if len(frame.rows(each))} == {kind: 1}
    assert not frame.unknown


KINETO = [
    "cpu_op", "user_annotation", "gpu_user_annotation", "gpu_memcpy", "gpu_memset", "kernel",
    "external_correlation", "cuda_runtime", "cuda_driver", "cpu_instant_event", "python_function", "overhead",
    "mtia_runtime", "mtia_ccp_events", "mtia_insight", "cuda_sync", "cuda_event", "mtia_counters",
    "glow_runtime", "cuda_profiler_range", "hpu_op", "xpu_runtime", "xpu_driver", "collective_comm",
    "privateuse1_runtime", "privateuse1_driver", "xpu_scope_profiler", "xpu_sync", "hardware_counters",
]  # fmt: skip


@pytest.mark.parametrize("cat", KINETO)
def test_all_activity_types_of_kineto_are_known(cat: str) -> None:
    assert category(cat) is not Cat.UNKNOWN


def test_an_unknown_category_is_counted_and_is_no_work(tmp_path: Path) -> None:
    path = written(tmp_path, kernel(0, 10), kernel(10, 90, cat="quantum_gate"), kernel(20, 5, cat="quantum_gate"))
    assert frame_of(path).unknown == {"quantum_gate": 2}
    device = measured(path, window=(0, 100_000)).device
    assert device is not None
    assert (device.compute, device.idle) == (10_000, 90_000)


def test_a_synchronisation_is_no_work(tmp_path: Path) -> None:
    sync = [kernel(0, 90, 1, "Stream Sync", cat="cuda_sync"), call(0, 90, 1, "cudaStreamSynchronize")]
    assert measured(written(tmp_path, *sync)).device is None
    device = measured(written(tmp_path, *sync, kernel(10, 10, 2)), window=(0, 100_000)).device
    assert device is not None
    assert (device.compute, device.idle, device.kernels) == (10_000, 90_000, 1)


def test_a_wait_of_mtia_is_no_work_and_its_dma_is_a_copy(tmp_path: Path) -> None:
    events = [
        kernel(0, 10, 1, "fc", cat="mtia_ccp_events"),
        kernel(10, 50, 2, "event_wait", stream=8, cat="mtia_ccp_events"),
        kernel(5, 25, 3, "dma_request", stream=9, cat="mtia_ccp_events"),
        kernel(70, 10, 5, "Memcpy DtoH", cat="gpu_memcpy"),
        call(0, 1, 1, "runFunction - job_prep_and_submit_for_execution", cat="mtia_runtime"),
    ]
    path = written(tmp_path, *events)
    found = measured(path, window=(0, 100_000))
    assert found.device is not None
    assert (found.device.compute, found.device.memory, found.device.idle) == (10_000, 30_000, 60_000)
    assert {row.kind: row.total for row in found.copies} == {"dma_request": 25_000, "DtoH": 10_000}
    frame = frame_of(path)
    assert [rows.start.tolist() for rows in (frame.rows(Cat.MEMORY), frame.rows(Cat.SYNC))] == [
        [5_000, 70_000], [10_000],
    ]  # fmt: skip


def test_a_host_that_uses_no_device_has_no_device_measures(tmp_path: Path) -> None:
    found = measured(written(tmp_path, span("cpu_op", "aten::mm", 0, 10, 10, 10)))
    assert (found.device, found.launches, found.host_bound, found.device_timeline) == (None, None, None, None)
    assert (found.idle, found.kernel_rows, found.copies, found.queues, found.oddities) == ((), (), (), (), {})


def test_a_queue_of_intel_is_told_by_its_thread(tmp_path: Path) -> None:
    """Kineto's XPU plugin writes `sycl queue` instead of `stream`; the thread id is the same number."""
    events = [
        span("kernel", "gemm", 0, 10, 0, 3, correlation=1, device=0, **{"sycl queue": 3}),
        span("kernel", "gemm", 20, 10, 0, 3, correlation=2, device=0, **{"sycl queue": 3}),
        span("xpu_runtime", "urEnqueueKernelLaunch", 12, 4, 10, 10, correlation=2),
        span("xpu_driver", "zeCommandListAppendLaunchKernel", 13, 2, 10, 10, correlation=2),
    ]
    found = measured(written(tmp_path, *events))
    assert [(row.stream, row.host_wait) for row in found.idle] == [("3", 10_000)]
    assert found.launches is not None
    assert found.launches.count == 1
    assert found.oddities == {"host calls that share a correlation id": 1}


@pytest.mark.parametrize(
    "name",
    [
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)",
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)",
        "rcclGenericKernel",
        "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)",
        "void deep_ep::internode_ll::combine<true, 7168>(void*)",
        "nvshmemi_proxy_quiet",
        "hccl::all_reduce",
        "hcom_allReduce__606_0_1",
        "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long)",
        "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 2>(c10::BFloat16**)",
        "_multimem_all_gather_kernel",
        "void vllm::cross_device_reduce_1stage<__hip_bfloat16, 8>(vllm::RankData*, vllm::RankSignals)",
        "void quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half, CodecQ4<__half, 8>, true>, __half>()",
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<8>(Params<__nv_bfloat16>)",
        "void tensorrt_llm::kernels::oneShotAllReduceKernel<__half, 8, true, false>(AllReduceParams)",
    ],
)
def test_kernels_that_talk_to_other_ranks_are_communication(name: str) -> None:
    assert names.is_communication_kernel(name)


@pytest.mark.parametrize(
    "name",
    [
        "void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*)",
        "void at::native::vectorized_elementwise_kernel<4>",
        "my_nccl_free_kernel",
        "void (anonymous namespace)::softmax_warp_forward<float>(float*)",
        "void reduce_kernel<two_shot_all_reduce_kernel>(int)",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(float*)",
        "triton_poi_fused_hcom_0",
    ],
)
def test_other_kernels_are_not(name: str) -> None:
    assert not names.is_communication_kernel(name)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)", "all_reduce"),
        ("void (anonymous namespace)::multimem_all_gather_kernel<16>(char*, char*)", "all_gather"),
        ("void vllm::cross_device_reduce_2stage<__half, 8>(vllm::RankData*)", "all_reduce"),
        ("void aiter::cross_device_reduce_scatter_1stage<__half, 8>(int)", "reduce_scatter"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevComm*)", "reduce"),
    ],
)
def test_a_kernel_tells_what_it_does_between_ranks(name: str, kind: str) -> None:
    assert names.is_communication_kernel(name)
    assert names.collective_kind(name) == kind


LAUNCHES = [
    "cudaLaunchKernel", "cudaLaunchKernelExC", "cudaLaunchCooperativeKernel", "cuLaunchKernel",
    "cuLaunchKernelEx", "cudaMemcpyAsync", "cudaMemcpy2DAsync", "cudaMemsetAsync", "cudaGraphLaunch",
    "hipLaunchKernel", "hipExtLaunchKernel", "hipModuleLaunchKernel", "hipExtModuleLaunchKernel",
    "hipMemcpyAsync", "hipMemcpyWithStream", "hipMemsetAsync", "hipGraphLaunch", "urEnqueueKernelLaunch",
    "urEnqueueMemBufferWrite", "urEnqueueUSMMemcpy", "zeCommandListAppendMemoryCopy",
]  # fmt: skip


def test_launch_calls_are_known_by_name() -> None:
    assert [name for name in LAUNCHES if not names.is_launch(name)] == []
    assert [name for name in LAUNCHES if names.is_graph_launch(name)] == ["cudaGraphLaunch", "hipGraphLaunch"]
    others = ("cudaEventRecord", "cudaStreamSynchronize", "hipGetDevicePropertiesR0600", "cudaGraphInstantiate")
    assert not any(names.is_launch(name) for name in others)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "HtoD pageable"),
        ("Memcpy DtoH (Device -> Pinned)", "DtoH pinned"),
        ("Memcpy DtoD (Device -> Device)", "DtoD"),
        ("Memcpy PtoP (Device -> Device)", "PtoP"),
        ("Memcpy HtoD (Host -> Device)", "HtoD"),  # AMD
        ("Memcpy M2D", "M2D"),  # Intel
        ("Memset (Device)", "Memset"),
    ],
)
def test_the_kind_of_a_copy_is_in_its_name(name: str, kind: str) -> None:
    assert names.copy_kind(name) == kind
