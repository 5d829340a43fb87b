# The executor's library, and what it links: Gloo, CUDA and cuDNN where they are there.
if(NOT ZEROPLAN_GLOO STREQUAL "OFF")
  zeroplan_find_listed("${zeroplan_optional_dependencies}" QUIET)
  if(Gloo_FOUND)
    set(ZEROPLAN_WITH_GLOO ON)
    message(STATUS "zeroplan: CPU ranks in several processes: Gloo ${Gloo_VERSION}")
  elseif(ZEROPLAN_GLOO STREQUAL "ON")
    message(FATAL_ERROR "zeroplan: ZEROPLAN_GLOO=ON, but there is no Gloo 0.5 or newer; install libgloo-dev")
  else()
    message(STATUS "zeroplan: CPU ranks in several processes: off, there is no Gloo (libgloo-dev)")
  endif()
endif()
include(executor/kernels/levels.cmake)
zeroplan_library(executor EXCEPT ${cpu_kernel_sources} LINK zeroplan_machine zeroplan_text Threads::Threads)
zeroplan_add_cpu_kernels(zeroplan_executor)
if(ZEROPLAN_WITH_GLOO)
  target_compile_definitions(zeroplan_executor PUBLIC ZEROPLAN_WITH_GLOO=1)
  target_link_libraries(zeroplan_executor PRIVATE gloo)
endif()
if(ZEROPLAN_WITH_CUDA)
  target_compile_definitions(zeroplan_executor PUBLIC ZEROPLAN_WITH_CUDA=1)
  target_link_libraries(zeroplan_executor PUBLIC zeroplan_cuda_libraries)
  string(REPLACE ";" "," architectures "${CMAKE_CUDA_ARCHITECTURES}")
  set_source_files_properties(executor/measure/cuda/query_libraries.cc PROPERTIES
    COMPILE_DEFINITIONS "ZEROPLAN_CUDA_ARCHITECTURES=\"${architectures}\"")
  if(ZEROPLAN_RELEASE)
    set(cuda_folders "")  # this machine's, which another may have for something else
  endif()
  list(JOIN cuda_folders ":" cuda_folders)
  set_source_files_properties(executor/device/cuda/cuda_libraries.cc PROPERTIES
    COMPILE_DEFINITIONS "ZEROPLAN_CUDA_FOLDERS=\"${cuda_folders}\"")
endif()
if(ZEROPLAN_WITH_CUDNN)
  target_compile_definitions(zeroplan_executor PRIVATE ZEROPLAN_WITH_CUDNN=1)
  target_link_libraries(zeroplan_executor PUBLIC zeroplan_cudnn)
  # cuDNN's frontend is the largest header of all: without what writes its graphs as JSON, and with
  # less optimization, it takes a quarter of the time. A launch passes through little of it.
  set_source_files_properties(executor/kernels/cuda/attention/cudnn_sdpa.cc PROPERTIES
    COMPILE_DEFINITIONS CUDNN_FRONTEND_SKIP_JSON_LIB COMPILE_OPTIONS $<$<CONFIG:Release>:-O1>
    SKIP_PRECOMPILE_HEADERS ON)
endif()
