// Made by scripts/explorer_data.py from the library: do not edit.
globalThis.Explorer = globalThis.Explorer || {};
globalThis.Explorer.data = {
 "LINE": 64,
 "FLOPS_PER_EXP": 8,
 "ITEMSIZES": {
  "float64": 8,
  "float32": 4,
  "float16": 2,
  "bfloat16": 2
 },
 "PASSES": {
  "softmax": {
   "naive": {
    "reads": 2,
    "writes": 1,
    "exps": 2,
    "flops": 2,
    "statistics": 0
   },
   "three_pass": {
    "reads": 3,
    "writes": 1,
    "exps": 2,
    "flops": 4,
    "statistics": 0
   },
   "online": {
    "reads": 2,
    "writes": 1,
    "exps": 2,
    "flops": 4,
    "statistics": 0
   },
   "cached": {
    "reads": 1,
    "writes": 1,
    "exps": 1,
    "flops": 3,
    "statistics": 0
   }
  },
  "logsumexp": {
   "naive": {
    "reads": 1,
    "writes": 0,
    "exps": 1,
    "flops": 1,
    "statistics": 1
   },
   "three_pass": {
    "reads": 2,
    "writes": 0,
    "exps": 1,
    "flops": 2,
    "statistics": 1
   },
   "online": {
    "reads": 1,
    "writes": 0,
    "exps": 1,
    "flops": 2,
    "statistics": 1
   },
   "cached": {
    "reads": 1,
    "writes": 0,
    "exps": 1,
    "flops": 2,
    "statistics": 1
   }
  }
 },
 "DEVICES": [
  {
   "key": "h100",
   "name": "NVIDIA H100 SXM5 80 GB",
   "bandwidth": 3350000000000.0,
   "vector_peak": 66900000000000.0,
   "exp_rate": 4181760000000.0,
   "launch": 2.1e-06,
   "last_level": 52428800,
   "units": 132,
   "sources": {
    "memory_bandwidth": "NVIDIA, H100 Tensor Core GPU Architecture, https://resources.nvidia.com/en-us-hopper-architecture, as given in https://glennklockwood.com/garden/processors/h100",
    "last_level": "deviceQuery, a program of the CUDA samples, as printed on this device (L2, 50 MiB)",
    "peak.float32": "NVIDIA, H100 Tensor Core GPU Architecture, https://resources.nvidia.com/en-us-hopper-architecture, as given in https://glennklockwood.com/garden/processors/h100",
    "transcendentals_per_clock": "Shah et al., FlashAttention-3, section 3.1, https://arxiv.org/abs/2407.08608 (the paper's 3.9e12 a second takes 1830 MHz)",
    "launch": "Hazy Research, Look Ma, No Bubbles!, https://hazyresearch.stanford.edu/blog/2025-05-27-no-bubbles (on a stream; 1.3e-6 in a CUDA graph)"
   }
  },
  {
   "key": "h200",
   "name": "NVIDIA H200 SXM 141 GB",
   "bandwidth": 4800000000000.0,
   "vector_peak": 66900000000000.0,
   "exp_rate": 4181760000000.0,
   "launch": 2.1e-06,
   "last_level": 52428800,
   "units": 132,
   "sources": {
    "memory_bandwidth": "NVIDIA, H200 data sheet, https://www.nvidia.com/en-us/data-center/h200/, as given in https://aiwiki.ai/wiki/nvidia_h200",
    "last_level": "deviceQuery, a program of the CUDA samples, as printed on this device (L2, 50 MiB, as on H100: the same die) [not read there]",
    "peak.float32": "NVIDIA, H100 Tensor Core GPU Architecture, https://resources.nvidia.com/en-us-hopper-architecture, as given in https://glennklockwood.com/garden/processors/h100 (H200 is quoted as H100)",
    "transcendentals_per_clock": "Shah et al., FlashAttention-3, section 3.1, https://arxiv.org/abs/2407.08608 (compute capability 9.0)",
    "launch": "Hazy Research, Look Ma, No Bubbles!, https://hazyresearch.stanford.edu/blog/2025-05-27-no-bubbles (measured on H100) [not read there]"
   }
  },
  {
   "key": "b200",
   "name": "NVIDIA B200 180 GB",
   "bandwidth": 7700000000000.0,
   "vector_peak": 75000000000000.0,
   "exp_rate": 4653120000000.0,
   "launch": 3.8e-06,
   "last_level": 132644864,
   "units": 148,
   "sources": {
    "memory_bandwidth": "device query of a B200, https://github.com/pytorch/ao/pull/4002 (7680 bits at 3996 MHz, twice a clock: 7.67e12; NVIDIA also writes up to 8e12)",
    "last_level": "device query of a B200, https://github.com/pytorch/ao/pull/4002 (L2, 126.5 MiB; the tuning guide rounds to 126)",
    "peak.float32": "NVIDIA, Blackwell Architecture Technical Brief 2.1, table 3, https://resources.nvidia.com/en-us-blackwell-architecture (earlier versions said 80e12)",
    "transcendentals_per_clock": "Zadouri et al., FlashAttention-4, https://arxiv.org/abs/2603.05451",
    "launch": "Mirage Persistent Kernel, https://arxiv.org/abs/2512.22219 (0.8e-6 in a CUDA graph)"
   }
  },
  {
   "key": "a100",
   "name": "NVIDIA A100 SXM4 80 GB",
   "bandwidth": 2039000000000.0,
   "vector_peak": 19500000000000.0,
   "exp_rate": 2436480000000.0,
   "launch": 4e-06,
   "last_level": 41943040,
   "units": 108,
   "sources": {
    "memory_bandwidth": "NVIDIA, A100 data sheet, https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf, as given in https://glennklockwood.com/garden/processors/A100",
    "last_level": "deviceQuery, a program of the CUDA samples, as printed on this device (L2, 40 MiB)",
    "peak.float32": "NVIDIA, A100 Tensor Core GPU Architecture, https://images.nvidia.com/aem-dam/en-zz/Solutions/data-center/nvidia-ampere-architecture-whitepaper.pdf",
    "transcendentals_per_clock": "NVIDIA, CUDA C++ Best Practices Guide, 12.1.1, Throughput of Native Arithmetic Instructions, https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/ (compute capability 8.0)",
    "launch": "pegainfer (3): From Launch Overhead to CUDA Graph, https://susun-blog.com/blog/pegainfer-3-cuda-graph (order of magnitude: 4e-6 to 6e-6 on an RTX 5070 Ti) [not read there]"
   }
  },
  {
   "key": "l4",
   "name": "NVIDIA L4 24 GB",
   "bandwidth": 300000000000.0,
   "vector_peak": 30300000000000.0,
   "exp_rate": 1893120000000.0,
   "launch": 4e-06,
   "last_level": 50331648,
   "units": 58,
   "sources": {
    "memory_bandwidth": "NVIDIA, L4 data sheet, https://www.cisco.com/c/dam/en/us/products/collateral/servers-unified-computing/ucs-c-series-rack-servers/nvidia-l4-gpu.pdf",
    "last_level": "deviceQuery, a program of the CUDA samples, as printed on this device (L2, 48 MiB)",
    "peak.float32": "NVIDIA, L4 data sheet, https://www.cisco.com/c/dam/en/us/products/collateral/servers-unified-computing/ucs-c-series-rack-servers/nvidia-l4-gpu.pdf",
    "transcendentals_per_clock": "NVIDIA, CUDA C++ Best Practices Guide, 12.1.1, Throughput of Native Arithmetic Instructions, https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/ (compute capability 8.9; read for 8.0 and 8.6) [not read there]",
    "launch": "pegainfer (3): From Launch Overhead to CUDA Graph, https://susun-blog.com/blog/pegainfer-3-cuda-graph (order of magnitude: 4e-6 to 6e-6 on an RTX 5070 Ti) [not read there]"
   }
  },
  {
   "key": "rtx4090",
   "name": "NVIDIA GeForce RTX 4090 24 GB",
   "bandwidth": 1008000000000.0,
   "vector_peak": 82600000000000.0,
   "exp_rate": 5160960000000.0,
   "launch": 4e-06,
   "last_level": 75497472,
   "units": 128,
   "sources": {
    "memory_bandwidth": "NVIDIA, Ada GPU Architecture, appendix A, https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf",
    "last_level": "NVIDIA, Ada GPU Architecture, appendix A, https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf (L2, 72 MiB)",
    "peak.float32": "NVIDIA, Ada GPU Architecture, appendix A, https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf",
    "transcendentals_per_clock": "NVIDIA, CUDA C++ Best Practices Guide, 12.1.1, Throughput of Native Arithmetic Instructions, https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/ (compute capability 8.9; read for 8.0 and 8.6) [not read there]",
    "launch": "pegainfer (3): From Launch Overhead to CUDA Graph, https://susun-blog.com/blog/pegainfer-3-cuda-graph (order of magnitude: 4e-6 to 6e-6 on an RTX 5070 Ti) [not read there]"
   }
  },
  {
   "key": "mi300x",
   "name": "AMD Instinct MI300X 192 GB",
   "bandwidth": 5300000000000.0,
   "vector_peak": 163400000000000.0,
   "exp_rate": 10214400000000.0,
   "launch": null,
   "last_level": 268435456,
   "units": 304,
   "sources": {
    "memory_bandwidth": "AMD, MI300 series microarchitecture, https://rocm.docs.amd.com/en/docs-6.2.4/conceptual/gpu-arch/mi300.html",
    "last_level": "AMD, GPU specifications, https://rocm.docs.amd.com/en/latest/reference/gpu-specs.html (Infinity Cache, 256 MiB; L2 is 4 MiB a die)",
    "peak.float32": "AMD, MI300 series microarchitecture, https://rocm.docs.amd.com/en/docs-6.2.4/conceptual/gpu-arch/mi300.html",
    "transcendentals_per_clock": "LLVM, SISchedule.td, https://reviews.llvm.org/D81011 (a quarter of the 4 times 16 lanes)"
   }
  },
  {
   "key": "apple-m4-max",
   "name": "Apple M4 Max, 40 GPU cores",
   "bandwidth": 546000000000.0,
   "vector_peak": null,
   "exp_rate": null,
   "launch": null,
   "last_level": null,
   "units": 40,
   "sources": {
    "memory_bandwidth": "MacRumors, Apple Announces M4 Max Chip, https://www.macrumors.com/2024/10/30/apple-announces-m4-max-chip/ (410e9 with 32 GPU cores)"
   }
  },
  {
   "key": "apple-m3-max",
   "name": "Apple M3 Max, 40 GPU cores",
   "bandwidth": 400000000000.0,
   "vector_peak": null,
   "exp_rate": null,
   "launch": null,
   "last_level": null,
   "units": 40,
   "sources": {
    "memory_bandwidth": "Report of Apple's announcement of M4 Max, beside M3 Max, https://macmegasite.com/2024/10/30/m4-max-chip-has-16-core-cpu-40-core-gpu-and-35-increase-in-memory-bandwidth (300e9 with 30 GPU cores)"
   }
  },
  {
   "key": "apple-m2-ultra",
   "name": "Apple M2 Ultra, 76 GPU cores",
   "bandwidth": 800000000000.0,
   "vector_peak": null,
   "exp_rate": null,
   "launch": null,
   "last_level": null,
   "units": 76,
   "sources": {
    "memory_bandwidth": "Apple introduces M2 Ultra, https://www.apple.com/pt/newsroom/2023/06/apple-introduces-m2-ultra"
   }
  }
 ]
};
