"""GPU dumps of every driver generation, CSV, failures, and whose process it is. Samples carry invented values in exact columns."""

from __future__ import annotations

import pytest

from vllm_doctor.model.observations import Gpu, GpuProcess, Issue
from vllm_doctor.parsing.gpu import MIB, is_vllm_process, mebibytes, parse

DRIVER_440 = """\
+-----------------------------------------------------------------------------+
| NVIDIA-SMI 440.99       Driver Version: 440.99       CUDA Version: 10.2     |
|-------------------------------+----------------------+----------------------+
| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |
|===============================+======================+======================|
|   0  Tesla V100-SXM2...  Off  | 00000000:1A:00.0 Off |                    0 |
| N/A   41C    P0    88W / 300W |  15032MiB / 16160MiB |     97%      Default |
+-------------------------------+----------------------+----------------------+

+-----------------------------------------------------------------------------+
| Processes:                                                       GPU Memory |
|  GPU       PID   Type   Process name                             Usage      |
|=============================================================================|
|    0     20417      C   /usr/bin/python3                           15021MiB |
+-----------------------------------------------------------------------------+
"""

DRIVER_525 = """\
Wed Nov 12 10:04:31 2025       
+-----------------------------------------------------------------------------+
| NVIDIA-SMI 525.60.99    Driver Version: 525.60.99    CUDA Version: 12.0     |
|-------------------------------+----------------------+----------------------+
| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |
|                               |                      |               MIG M. |
|===============================+======================+======================|
|   0  NVIDIA A100-SXM...  On   | 00000000:0B:00.0 Off |                    0 |
| N/A   41C    P0    88W / 400W |  73215MiB / 81920MiB |     97%      Default |
|                               |                      |             Disabled |
+-------------------------------+----------------------+----------------------+

+-----------------------------------------------------------------------------+
| Processes:                                                                  |
|  GPU   GI   CI        PID   Type   Process name                  GPU Memory |
|        ID   ID                                                   Usage      |
|=============================================================================|
|    0   N/A  N/A     20417      C   /usr/bin/python3                73209MiB |
+-----------------------------------------------------------------------------+
"""

DRIVER_530 = """\
+---------------------------------------------------------------------------------------+
| NVIDIA-SMI 530.99.01              Driver Version: 530.99.01    CUDA Version: 12.1     |
|-----------------------------------------+----------------------+----------------------+
| GPU  Name                  Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp  Perf            Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |
|                                         |                      |               MIG M. |
|=========================================+======================+======================|
|   0  NVIDIA L40S                     Off| 00000000:65:00.0 Off |                    0 |
| N/A   52C    P0             201W / 350W |  41877MiB / 46068MiB |     88%      Default |
|                                         |                      |                  N/A |
+-----------------------------------------+----------------------+----------------------+
| Processes:                                                                            |
|  No running processes found                                                           |
+---------------------------------------------------------------------------------------+
"""

DRIVER_580 = """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 580.99.01              Driver Version: 580.99.01      CUDA Version: 13.0     |
+-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:1B:00.0 Off |                    0 |
| N/A   58C    P0            512W /  700W |   75310MiB /  81559MiB |     99%      Default |
|                                         |                        |             Disabled |
+-----------------------------------------+------------------------+----------------------+
|   1  NVIDIA H100 80GB HBM3          On  |   00000000:43:00.0 Off |                 ERR! |
|ERR!  ERR!  ERR!           ERR! / ERR!   |   71034MiB /  81559MiB |    ERR!      Default |
|                                         |                        |                 ERR! |
+-----------------------------------------+------------------------+----------------------+

+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |
|        ID   ID                                                               Usage      |
|=========================================================================================|
|    0   N/A  N/A           20517      C   VLLM::Worker_TP0                      71022MiB |
|    0   N/A  N/A           20990      C   ...envs/train/bin/python3.11           4276MiB |
|    1   N/A  N/A           20518      C   VLLM::Worker_TP1                      71022MiB |
+-----------------------------------------------------------------------------------------+
"""

MIG = """\
| NVIDIA-SMI 610.99.01              KMD Version: 610.99.01     CUDA UMD Version: 13.3     |
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:1B:00.0 Off |                   On |
| N/A   58C    P0            212W /  700W |   37115MiB /  81559MiB |     N/A      Default |
|                                         |                        |              Enabled |
+-----------------------------------------+------------------------+----------------------+
| MIG devices:                                                                            |
+------------------+----------------------------------+-----------+-----------------------+
| GPU  GI  CI  MIG |              Shared Memory-Usage |        Vol|        Shared         |
|      ID  ID  Dev |                Shared BAR1-Usage | SM     Unc| CE ENC  DEC  OFA  JPG |
|                  |                                  |        ECC|                       |
|==================+==================================+===========+=======================|
|  0    2   0   0  |           37102MiB / 40448MiB    | 60      0 |  3   0    3    0    3 |
|                  |               0MiB / 24739MiB    |           |                       |
+------------------+----------------------------------+-----------+-----------------------+
| Processes:                                                                              |
|    0    2    0           20517      C   VLLM::EngineCore                      37022MiB |
"""


def facts(gpu: Gpu) -> tuple[object, ...]:
    return gpu.index, gpu.name, gpu.total_bytes, gpu.used_bytes, gpu.utilization, gpu.processes_listed


def rows(gpu: Gpu) -> list[tuple[object, ...]]:
    return [(p.pid, p.name, p.bytes) for p in gpu.processes]


def codes(issues: list[Issue]) -> list[tuple[str, int | None]]:
    return [(i.code, i.ref.line if i.ref else None) for i in issues]


@pytest.mark.parametrize(
    ("text", "want", "processes"),
    [
        (DRIVER_440, (0, "Tesla V100-SXM2...", 16160 * MIB, 15032 * MIB, 0.97, True), [(20417, "/usr/bin/python3", 15021 * MIB)]),
        (DRIVER_525, (0, "NVIDIA A100-SXM...", 81920 * MIB, 73215 * MIB, 0.97, True), [(20417, "/usr/bin/python3", 73209 * MIB)]),
        (DRIVER_530, (0, "NVIDIA L40S", 46068 * MIB, 41877 * MIB, 0.88, True), []),
    ],
    ids=["440", "525", "530"],
)
def test_a_table_is_read_whatever_the_driver(text: str, want: tuple[object, ...], processes: list[tuple[object, ...]]) -> None:
    gpus, issues = parse(text, "smi.txt", 1)
    assert [facts(g) for g in gpus] == [want]
    assert rows(gpus[0]) == processes
    assert issues == []


def test_windows_line_ends_and_indentation_change_nothing() -> None:
    shifted = "".join("    " + line + "\r\n" for line in DRIVER_525.splitlines())
    assert [facts(g) for g in parse(shifted, "s", 1)[0]] == [facts(g) for g in parse(DRIVER_525, "s", 1)[0]]


def test_a_lost_gpu_is_unknown_where_it_says_err_and_is_named() -> None:
    gpus, issues = parse(DRIVER_580, "smi.txt", 100)
    assert [facts(g) for g in gpus] == [
        (0, "NVIDIA H100 80GB HBM3", 81559 * MIB, 75310 * MIB, 0.99, True),
        (1, "NVIDIA H100 80GB HBM3", 81559 * MIB, 71034 * MIB, None, True),
    ]
    assert rows(gpus[0]) == [(20517, "VLLM::Worker_TP0", 71022 * MIB), (20990, "...envs/train/bin/python3.11", 4276 * MIB)]
    assert codes(issues) == [("gpu.error_cells", 112)]
    assert issues[0].values == {"index": 1}


def test_err_in_the_power_cell_alone_passes() -> None:
    text = DRIVER_525.replace("   88W / 400W |", "   ERR! / 400W |")
    gpus, issues = parse(text, "s", 1)
    assert (gpus[0].used_bytes, issues) == (73215 * MIB, [])


def test_the_line_of_the_memory_figures_is_quoted_with_the_one_that_names_the_gpu() -> None:
    ref = parse(DRIVER_525, "smi.txt", 1)[0][0].ref
    assert (ref.source, ref.line) == ("smi.txt", 10)
    assert ref.text == "| N/A   41C    P0    88W / 400W |  73215MiB / 81920MiB |     97%      Default |"
    assert ref.before == ("|   0  NVIDIA A100-SXM...  On   | 00000000:0B:00.0 Off |                    0 |",)


def test_the_date_above_the_table_is_its_time_on_its_own_clock() -> None:
    assert parse(DRIVER_525, "s", 1)[0][0].time == 1762941871.0
    assert parse(DRIVER_530, "s", 1)[0][0].time is None


def test_dumps_appended_to_one_file_stay_apart() -> None:
    later = DRIVER_525.replace("10:04:31", "10:05:31").replace("73215MiB", "11MiB").replace("73209MiB", "5MiB")
    gpus, _ = parse(DRIVER_525 + later, "s", 1)
    assert [(g.index, g.used_bytes, g.time, rows(g)[0][2]) for g in gpus] == [
        (0, 73215 * MIB, 1762941871.0, 73209 * MIB),
        (0, 11 * MIB, 1762941931.0, 5 * MIB),
    ]


def test_a_mig_instance_gives_the_memory_that_vllm_sees() -> None:
    gpus, issues = parse(MIG, "s", 1)
    assert [facts(g) for g in gpus] == [(0, "NVIDIA H100 80GB HBM3", 40448 * MIB, 37102 * MIB, None, True)]
    assert rows(gpus[0]) == [(20517, "VLLM::EngineCore", 37022 * MIB)]
    assert codes(issues) == [("gpu.mig", 12)]


def test_with_several_mig_instances_the_memory_is_unknown() -> None:
    second = "|  0    3   0   1  |              13MiB / 40448MiB    | 60      0 |  3   0    3    0    3 |\n"
    gpus, _ = parse(MIG.replace("| Processes:", second + "| Processes:"), "s", 1)
    assert (gpus[0].total_bytes, gpus[0].used_bytes) == (None, None)


def test_memory_that_the_driver_does_not_give_is_unknown() -> None:
    text = DRIVER_525.replace(" 73215MiB / 81920MiB ", " Not Supported       ").replace("73209MiB", "     N/A")
    gpu = parse(text, "s", 1)[0][0]
    assert (gpu.total_bytes, gpu.used_bytes, rows(gpu)) == (None, None, [(20417, "/usr/bin/python3", None)])


def test_csv_maps_columns_by_its_header() -> None:
    text = (
        "index, name, memory.total [MiB], memory.used [MiB], utilization.gpu [%]\n"
        "0, NVIDIA H100 80GB HBM3, 81559 MiB, 75310 MiB, 99 %\n"
        "1, NVIDIA H100 80GB HBM3, 81559 MiB, [N/A], [GPU is lost]\n"
    )
    gpus, issues = parse(text, "gpus.csv", 1)
    assert [facts(g) for g in gpus] == [
        (0, "NVIDIA H100 80GB HBM3", 81559 * MIB, 75310 * MIB, 0.99, False),
        (1, "NVIDIA H100 80GB HBM3", 81559 * MIB, None, None, False),
    ]
    assert [g.ref.line for g in gpus] == [2, 3]
    assert codes(issues) == [("gpu.lost", 3)]


def test_csv_without_units_still_means_mebibytes() -> None:
    gpus, _ = parse("timestamp, index, memory.used [MiB]\n2025/11/12 10:04:31.742, 3, 75310\n", "s", 1)
    assert [(g.index, g.used_bytes, g.time) for g in gpus] == [(3, 75310 * MIB, 1762941871.742)]


def test_csv_without_a_header_takes_its_columns_from_the_command() -> None:
    text = "$ nvidia-smi --query-gpu=memory.used,index --format=csv,noheader,nounits\n75310, 2\n"
    assert [(g.index, g.used_bytes) for g in parse(text, "s", 1)[0]] == [(2, 75310 * MIB)]


def test_csv_without_header_and_command_is_not_guessed() -> None:
    gpus, issues = parse("0, NVIDIA H100 80GB HBM3, 81559 MiB, 75310 MiB\n1, NVIDIA H100 80GB HBM3, 81559 MiB, 5 MiB\n", "s", 7)
    assert (gpus, codes(issues)) == ((), [("gpu.csv_noheader", 7)])


def test_a_csv_row_that_does_not_fit_is_named_and_the_rest_kept() -> None:
    gpus, issues = parse("index, memory.used [MiB]\n0, 5 MiB, 7\n1, 6 MiB\n", "s", 1)
    assert [(g.index, g.used_bytes) for g in gpus] == [(1, 6 * MIB)]
    assert codes(issues) == [("gpu.csv_row", 2)]


def test_compute_apps_go_to_the_only_gpu_and_names_may_hold_commas() -> None:
    text = (
        "index, name, memory.used [MiB]\n0, NVIDIA L40S, 41877 MiB\n\n"
        "pid, process_name, used_gpu_memory [MiB]\n20517, VLLM::EngineCore, 40022 MiB\n77, run, now, [Not Found]\n"
    )
    gpus, issues = parse(text, "s", 1)
    assert [(g.index, g.processes_listed, rows(g)) for g in gpus] == [(0, True, [(20517, "VLLM::EngineCore", 40022 * MIB), (77, "run, now", None)])]
    assert issues == []


def test_compute_apps_without_a_device_belong_to_none() -> None:
    gpus, _ = parse("pid, process_name, used_gpu_memory [MiB]\n20517, VLLM::Worker_TP0, 71022 MiB\n", "s", 1)
    assert [(g.index, g.name, rows(g)) for g in gpus] == [(-1, None, [(20517, "VLLM::Worker_TP0", 71022 * MIB)])]


def test_compute_apps_find_their_device_by_uuid() -> None:
    text = "index, uuid\n0, GPU-1b2c\n1, GPU-3d4e\ngpu_uuid, pid, process_name, used_gpu_memory [MiB]\nGPU-3d4e, 9, python, 5 MiB\n"
    assert [(g.index, rows(g)) for g in parse(text, "s", 1)[0]] == [(0, []), (1, [(9, "python", 5 * MIB)])]


def test_the_long_form_gives_memory_use_and_processes() -> None:
    text = """
==============NVSMI LOG==============

Timestamp                                              : Wed Nov 12 10:04:31 2025
Attached GPUs                                          : 1
GPU 00000000:1B:00.0
    Product Name                                       : NVIDIA H200
    FB Memory Usage
        Total                                          : 143771 MiB
        Reserved                                       : 580 MiB
        Used                                           : 129204 MiB
    BAR1 Memory Usage
        Total                                          : 262144 MiB
    Utilization
        GPU                                            : 97 %
        Memory                                         : 41 %
    Processes
        Process ID                        : 20517
            Type                          : C
            Name                          : VLLM::EngineCore
            Used GPU Memory               : 129190 MiB
"""
    gpus, issues = parse(text, "s", 1)
    assert [facts(g) for g in gpus] == [(0, "NVIDIA H200", 143771 * MIB, 129204 * MIB, 0.97, True)]
    assert (rows(gpus[0]), gpus[0].time, issues) == ([(20517, "VLLM::EngineCore", 129190 * MIB)], 1762941871.0, [])


def test_the_list_of_devices_names_them() -> None:
    gpus, _ = parse("GPU 0: NVIDIA H200 (UUID: GPU-1b2c)\nGPU 1: NVIDIA H200 (UUID: GPU-5f6a)\n", "s", 1)
    assert [(g.index, g.name, g.total_bytes) for g in gpus] == [(0, "NVIDIA H200", None), (1, "NVIDIA H200", None)]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest", "gpu.driver_unreachable"),
        ("Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.99", "gpu.driver_mismatch"),
        ("Failed to initialize NVML: Unknown Error", "gpu.devices_lost"),
        ("Failed to initialize NVML: Insufficient Permissions", "gpu.no_permission"),
        ("Failed to initialize NVML: GPU access blocked by the operating system", "gpu.no_permission"),
        ("Unable to determine the device handle for GPU 0000:4B:00.0: Unknown Error", "gpu.lost"),
        ("Unable to determine the device handle for GPU0: 0000:4B:00.0: GPU is lost.  Reboot the system to recover this GPU", "gpu.lost"),
        ("No devices were found", "gpu.none"),
        ('Field "xyz" is not a valid field to query.', "gpu.bad_query"),
    ],
)
def test_each_failure_of_the_tool_has_a_code(text: str, code: str) -> None:
    gpus, issues = parse(text + "\n", "smi.txt", 3)
    assert (gpus, codes(issues)) == ((), [(code, 3)])


@pytest.mark.parametrize(
    ("text", "tool"),
    [
        ("======================================= ROCm System Management Interface =======\n", "rocm-smi"),
        ("| BDF                        GPU-Name | Mem-Uti   Temp   UEC       Power-Usage |\n", "amd-smi"),
        ("| npu-smi 24.1.rc2                 Version: 24.1.rc2                            |\n", "npu-smi"),
        ("# gpu    pwr  gtemp  mtemp     sm    mem    enc    dec\n", "nvidia-smi dmon or pmon"),
        ("[0] NVIDIA H100 80GB HBM3 | 58°C,  99 % | 75310 / 81559 MB | u1(71022M)\n", "gpustat"),
    ],
)
def test_other_tools_are_named_as_not_read(text: str, tool: str) -> None:
    gpus, issues = parse(text, "s", 1)
    assert (gpus, codes(issues), issues[0].values) == ((), [("gpu.tool_unread", 1)], {"tool": tool})


def test_of_many_readings_the_first_and_last_are_kept() -> None:
    text = "index, memory.used [MiB]\n" + "".join(f"0, {i} MiB\n" for i in range(100))
    gpus, issues = parse(text, "s", 1)
    assert [g.used_bytes for g in gpus] == [i * MIB for i in [*range(8), *range(92, 100)]]
    assert (issues[0].code, issues[0].values) == ("gpu.many_readings", {"count": 100, "kept": 8})


@pytest.mark.parametrize(
    ("name", "pid", "log_pids", "identified", "want"),
    [
        ("VLLM::EngineCore", 1, (), False, True),
        ("VLLM::Worker_TP", None, (), False, True),
        ("/usr/bin/python3", 20517, (20517,), False, True),
        ("/usr/bin/python3", 20517, (7,), False, None),
        ("...envs/train/bin/python3.11", 20990, (), False, None),
        ("...envs/train/bin/python3.11", 20990, (), True, False),
        ("pt_main_thread", 5, (), False, None),
        ("ray::RayWorkerWrapper.execute", 5, (), True, None),
        ("/usr/local/bin/vllm", 5, (), False, True),
        ("tritonserver", 5, (), False, False),
        ("sglang::scheduler", 5, (), False, False),
        ("/usr/lib/xorg/Xorg", 5, (), False, False),
        (r"...em32\dwm.exe", 5, (), False, False),
        ("[Not Found]", 5, (), True, None),
        ("", 5, (), True, None),
    ],
)
def test_whose_process_it_is(name: str, pid: int | None, log_pids: tuple[int, ...], identified: bool, want: bool | None) -> None:
    assert is_vllm_process(name, pid, log_pids, identified) is want


def test_figures_are_mebibytes_and_words_are_unknown() -> None:
    assert [mebibytes(t) for t in ("71022MiB", "71022 MiB", "5", "[N/A]", "ERR!", "")] == [71022 * MIB, 71022 * MIB, 5 * MIB, None, None, None]


def test_a_process_keeps_its_line() -> None:
    process = parse(DRIVER_440, "smi.txt", 1)[0][0].processes[0]
    assert process == GpuProcess(20417, "/usr/bin/python3", 15021 * MIB, process.ref)
    assert (process.ref.line, process.ref.text[:16]) == (15, "|    0     20417")
