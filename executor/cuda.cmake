# Finds what the CUDA executor builds with and says what was found. Sets ZEROPLAN_WITH_CUDA and
# ZEROPLAN_WITH_CUDNN, and the targets zeroplan_cuda_libraries and zeroplan_cudnn to link. The cache
# keeps ZEROPLAN_CUDA_STATUS, "on" or why not, for scripts.
#
# The executor's CUDA sources live in folders named cuda, which a build without CUDA leaves out.
set(ZEROPLAN_WITH_CUDA OFF)
set(ZEROPLAN_WITH_CUDNN OFF)
if(ZEROPLAN_CUDA STREQUAL "OFF")
  set(ZEROPLAN_CUDA_STATUS "ZEROPLAN_CUDA=OFF" CACHE INTERNAL "")
  message(STATUS "zeroplan: CUDA executor: off (ZEROPLAN_CUDA=OFF)")
  return()
endif()

# A toolkit need not be on the PATH.
if(NOT DEFINED CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(ZEROPLAN_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin PATHS /usr/local/cuda/bin)
  if(ZEROPLAN_NVCC)
    set(ENV{CUDACXX} ${ZEROPLAN_NVCC})
  endif()
endif()
include(CheckLanguage)
check_language(CUDA)
find_path(ZEROPLAN_NCCL_INCLUDE nccl.h HINTS $ENV{NCCL_HOME}/include /usr/local/cuda/include)
find_library(ZEROPLAN_NCCL_LIBRARY nccl HINTS $ENV{NCCL_HOME}/lib /usr/local/cuda/lib64)
set(missing "")
if(NOT CMAKE_CUDA_COMPILER)
  list(APPEND missing "nvcc")
endif()
if(NOT ZEROPLAN_NCCL_INCLUDE)
  list(APPEND missing "NCCL (nccl.h, or set NCCL_HOME)")
endif()
if(missing)
  list(JOIN missing ", " missing)
  if(ZEROPLAN_CUDA STREQUAL "ON")
    message(FATAL_ERROR "zeroplan: ZEROPLAN_CUDA=ON, but there is no ${missing}")
  endif()
  set(ZEROPLAN_CUDA_STATUS "there is no ${missing}" CACHE INTERNAL "")
  message(STATUS "zeroplan: CUDA executor: off, there is no ${missing}")
  return()
endif()

if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  # The GPU that is here, else the two data-centre generations that most users have.
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
    OUTPUT_VARIABLE capabilities ERROR_QUIET RESULT_VARIABLE status)
  if(status EQUAL 0 AND capabilities MATCHES "([0-9]+)\\.([0-9]+)")
    set(CMAKE_CUDA_ARCHITECTURES "${CMAKE_MATCH_1}${CMAKE_MATCH_2}-real")
  else()
    set(CMAKE_CUDA_ARCHITECTURES "80-real;90-real")
  endif()
endif()
enable_language(CUDA)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
# CMake 3.25 does not know that newer compilers have it.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
find_package(CUDAToolkit 12.4 REQUIRED)

add_library(zeroplan_cuda_libraries INTERFACE)
target_include_directories(zeroplan_cuda_libraries SYSTEM INTERFACE ${ZEROPLAN_NCCL_INCLUDE})
# The driver, cuBLASLt, NCCL and cuDNN are opened at run time (executor/device/cuda/cuda_libraries.h), so that
# the program starts without them. Their folders here are tried last.
target_link_libraries(zeroplan_cuda_libraries INTERFACE CUDA::cudart_static ${CMAKE_DL_LIBS})
set(cuda_folders ${CUDAToolkit_LIBRARY_DIR})
if(ZEROPLAN_NCCL_LIBRARY)
  cmake_path(GET ZEROPLAN_NCCL_LIBRARY PARENT_PATH nccl_folder)
  list(APPEND cuda_folders ${nccl_folder})
endif()
set(ZEROPLAN_WITH_CUDA ON)
set(ZEROPLAN_CUDA_STATUS "on" CACHE INTERNAL "")
message(STATUS "zeroplan: CUDA executor: CUDA ${CUDAToolkit_VERSION}, NCCL ${ZEROPLAN_NCCL_INCLUDE}/nccl.h, "
               "architectures ${CMAKE_CUDA_ARCHITECTURES}")

# To build, cuDNN's headers do.
find_path(ZEROPLAN_CUDNN_INCLUDE cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
find_library(ZEROPLAN_CUDNN_LIBRARY NAMES libcudnn.so.9 cudnn HINTS ${CUDAToolkit_LIBRARY_DIR})
# The frontend's headers: the system's, or those of the package nvidia-cudnn-frontend that
# scripts/setup.sh puts under build/deps.
find_path(ZEROPLAN_CUDNN_FRONTEND_INCLUDE cudnn_frontend.h
  HINTS ${CMAKE_SOURCE_DIR}/build/deps/cudnn_frontend_pkg/include)
if(ZEROPLAN_CUDNN_INCLUDE AND ZEROPLAN_CUDNN_FRONTEND_INCLUDE)
  add_library(zeroplan_cudnn INTERFACE)
  target_include_directories(zeroplan_cudnn SYSTEM INTERFACE
    ${ZEROPLAN_CUDNN_INCLUDE} ${ZEROPLAN_CUDNN_FRONTEND_INCLUDE})
  target_link_libraries(zeroplan_cudnn INTERFACE ${CMAKE_DL_LIBS})
  set(cudnn_here "not here")
  if(ZEROPLAN_CUDNN_LIBRARY)
    set(cudnn_here ${ZEROPLAN_CUDNN_LIBRARY})
    cmake_path(GET ZEROPLAN_CUDNN_LIBRARY PARENT_PATH cudnn_folder)
    list(APPEND cuda_folders ${cudnn_folder})
  endif()
  set(ZEROPLAN_WITH_CUDNN ON)
  message(STATUS "zeroplan: attention: cuDNN, loaded at run time (here ${cudnn_here}), "
                 "frontend ${ZEROPLAN_CUDNN_FRONTEND_INCLUDE}")
else()
  message(STATUS "zeroplan: attention: a plain kernel, much slower: the headers of cuDNN or of "
                 "nvidia-cudnn-frontend are missing")
endif()
list(REMOVE_DUPLICATES cuda_folders)
