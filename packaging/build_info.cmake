# What --version says: the library zeroplan_build_info, whose one source is written anew in each build
# that finds another commit or state of the checkout. Sources without git say so, or are told by
# ZEROPLAN_COMMIT and ZEROPLAN_COMMIT_DATE.
set(ZEROPLAN_COMMIT "" CACHE STRING "Commit of these sources, where there is no git checkout")
set(ZEROPLAN_COMMIT_DATE "" CACHE STRING "Day of that commit, such as 2026-11-23")

# $1 of a header's lines "#define NAME $1", for several names, as "1.2.3".
function(zeroplan_header_version result header)
  set(version "")
  if(EXISTS ${header})
    foreach(name ${ARGN})
      file(STRINGS ${header} line REGEX "^#define ${name}[ \t]+[0-9]+" LIMIT_COUNT 1)
      string(REGEX MATCH "${name}[ \t]+([0-9]+)" ignored "${line}")
      list(APPEND version "${CMAKE_MATCH_1}")
    endforeach()
  endif()
  list(JOIN version "." version)
  set(${result} "${version}" PARENT_SCOPE)
endfunction()

set(build_cuda "")
set(build_nccl "")
set(build_cudnn "")
set(build_architectures "")
if(ZEROPLAN_WITH_CUDA)
  set(build_cuda "${CUDAToolkit_VERSION}")
  zeroplan_header_version(build_nccl ${ZEROPLAN_NCCL_INCLUDE}/nccl.h NCCL_MAJOR NCCL_MINOR NCCL_PATCH)
  list(JOIN CMAKE_CUDA_ARCHITECTURES " " build_architectures)
endif()
if(ZEROPLAN_WITH_CUDNN)
  zeroplan_header_version(build_cudnn ${ZEROPLAN_CUDNN_INCLUDE}/cudnn_version.h
    CUDNN_MAJOR CUDNN_MINOR CUDNN_PATCHLEVEL)
endif()
set(build_executor false)
if(ZEROPLAN_EXECUTOR)
  set(build_executor true)
endif()

# The part that is known now; the commit is put in when building.
set(build_info_template ${CMAKE_BINARY_DIR}/generated/build_info.cc.in)
set(build_info_source ${CMAKE_BINARY_DIR}/generated/build_info.cc)
file(CONFIGURE OUTPUT ${build_info_template} @ONLY CONTENT [[
// Written by packaging/build_info.cmake.
#include "core/base/build_info.h"

namespace zeroplan {

const BuildInfo& GetBuildInfo() {
  static constexpr BuildInfo kInfo = {
      .commit = "${commit}",
      .date = "${date}",
      .changed = ${changed},
      .compiler = "@CMAKE_CXX_COMPILER_ID@ @CMAKE_CXX_COMPILER_VERSION@, @CMAKE_BUILD_TYPE@",
      .executor = @build_executor@,
      .cuda = "@build_cuda@",
      .nccl = "@build_nccl@",
      .cudnn = "@build_cudnn@",
      .architectures = "@build_architectures@",
      .cuda_status = "@ZEROPLAN_CUDA_STATUS@"};
  return kInfo;
}

}  // namespace zeroplan
]])
find_package(Git QUIET)
add_custom_target(zeroplan_commit BYPRODUCTS ${build_info_source}
  COMMAND ${CMAKE_COMMAND} -DGIT=${GIT_EXECUTABLE} -DSOURCE_DIR=${CMAKE_SOURCE_DIR}
    -DGIVEN_COMMIT=${ZEROPLAN_COMMIT} -DGIVEN_DATE=${ZEROPLAN_COMMIT_DATE}
    -DTEMPLATE=${build_info_template} -DOUTPUT=${build_info_source}
    -P ${CMAKE_SOURCE_DIR}/packaging/write_build_info.cmake
  COMMENT "Looking up the commit" VERBATIM)
add_library(zeroplan_build_info STATIC ${build_info_source})
add_dependencies(zeroplan_build_info zeroplan_commit)
target_include_directories(zeroplan_build_info PRIVATE ${CMAKE_SOURCE_DIR})
target_link_libraries(zeroplan_build_info PRIVATE zeroplan_options)
target_compile_options(zeroplan_build_info PRIVATE ${position_independent})
