# The kernel library: no dependency but the compiler and threads. Shared by the Python module and the native tests.
find_package(Threads REQUIRED)

set(CORE_DIR ${CMAKE_CURRENT_LIST_DIR})
# Families of kernels that have a translation unit of their own for each instruction set, beside that of the rows.
set(FAMILIES _attention _exact _losses _product _sample _scans)
# The units of an instruction set, isa/NAME.cpp and isa/NAME_FAMILY.cpp.
function(units_of name to)
  foreach(family IN LISTS FAMILIES)
    list(APPEND units ${CORE_DIR}/isa/${name}${family}.cpp)
  endforeach()
  list(APPEND units ${CORE_DIR}/isa/${name}.cpp)
  list(REMOVE_DUPLICATES units)
  set(${to} ${units} PARENT_SCOPE)
endfunction()

units_of(scalar SCALAR_UNITS)
add_library(online_softmax_core STATIC
  ${CORE_DIR}/dispatch.cpp ${CORE_DIR}/driver.cpp ${CORE_DIR}/run_rows.cpp ${CORE_DIR}/run_cols.cpp
  ${CORE_DIR}/run_masked.cpp ${CORE_DIR}/run_packed.cpp ${CORE_DIR}/run_attention.cpp ${CORE_DIR}/run_attention_sums.cpp ${CORE_DIR}/run_attention_gradient.cpp
  ${CORE_DIR}/run_losses.cpp ${CORE_DIR}/run_product.cpp ${CORE_DIR}/run_sample.cpp ${CORE_DIR}/run_scans.cpp ${CORE_DIR}/run_groups.cpp
  ${CORE_DIR}/run_exact.cpp
  ${CORE_DIR}/pool.cpp ${CORE_DIR}/memory.cpp ${SCALAR_UNITS})
target_include_directories(online_softmax_core PUBLIC ${CORE_DIR})
target_link_libraries(online_softmax_core PUBLIC Threads::Threads)
# Contraction off: the kernels write each fused multiply-add by hand, and the scalar ones count on two roundings.
target_compile_options(online_softmax_core PRIVATE -Wall -Wextra -ffp-contract=off -fno-math-errno)

# GCC 12 joins neighbouring scalar operations into vectors and then rounds some results otherwise than where it does not:
# the bits of a row would depend on where its result lies.
set_source_files_properties(${SCALAR_UNITS}
  PROPERTIES COMPILE_OPTIONS "$<$<CXX_COMPILER_ID:GNU>:-fno-tree-slp-vectorize>")
# Half of the scalar kernels' compile time goes into inlining, for a tenth of their speed: what has vectors never
# runs them.
set_property(SOURCE ${SCALAR_UNITS} APPEND PROPERTY COMPILE_OPTIONS "-O2")
set_property(SOURCE ${SCALAR_UNITS} PROPERTY COMPILE_DEFINITIONS "OSM_OUTLINED=1")

if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
  units_of(avx2 AVX2_UNITS)
  units_of(avx512 AVX512_UNITS)
  target_sources(online_softmax_core PRIVATE ${AVX2_UNITS} ${AVX512_UNITS} ${CORE_DIR}/isa/avx512_log16.cpp)
  set_source_files_properties(${AVX2_UNITS} PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c")
  # GCC 12 warns about the undefined registers inside its own AVX-512 header.
  set(AVX512 "-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mfma;-mf16c;-mprefer-vector-width=512")
  string(APPEND AVX512 ";$<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>;$<$<CXX_COMPILER_ID:GNU>:-Wno-uninitialized>")
  set_source_files_properties(${AVX512_UNITS} PROPERTIES COMPILE_OPTIONS "${AVX512}")
  set_source_files_properties(${CORE_DIR}/isa/avx512_log16.cpp PROPERTIES
    COMPILE_OPTIONS "${AVX512};-mavx512vbmi;-mavx512bf16")
  target_compile_definitions(online_softmax_core PRIVATE OSM_X86=1)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64|ARM64")
  units_of(neon NEON_UNITS)
  target_sources(online_softmax_core PRIVATE ${NEON_UNITS})
  target_compile_definitions(online_softmax_core PRIVATE OSM_ARM=1)
endif()
