# The libraries that zeroplan builds with: the name CMake knows, the least version, the package of
# Debian and Ubuntu. CMakeLists.txt asks for them, scripts/setup.sh for those that are missing. Those that
# few distributions have CMake files for are found by header and library, named here too, and become
# targets zeroplan::NAME.
set(zeroplan_dependencies
  "fmt 9 libfmt-dev"
  "nlohmann_json 3.10 nlohmann-json3-dev"
  "CLI11 2.1 libcli11-dev"
  "Eigen3 3.4 libeigen3-dev"
  "doctest 2.4 doctest-dev"
  "oniguruma 6.9 libonig-dev oniguruma.h onig"
  "utf8proc 2.7 libutf8proc-dev utf8proc.h utf8proc"
  "zlib 1.2 zlib1g-dev zlib.h z"
  "zstd 1.4 libzstd-dev zstd.h zstd"
  "xxhash 0.8 libxxhash-dev xxhash.h xxhash")

# Those that it builds without, too, and then lacks what they are for: scripts/setup.sh installs them
# where apt has them.
set(zeroplan_optional_dependencies
  "Gloo 0.5 libgloo-dev")  # ranks of the CPU in several processes

# Leaves out what a build without the executor (EXECUTOR OFF) or without tests (TESTS OFF) does not need.
function(zeroplan_narrow_dependencies)
  cmake_parse_arguments(ARG "" "EXECUTOR;TESTS" "" ${ARGN})
  if(NOT ARG_EXECUTOR)
    list(FILTER zeroplan_dependencies EXCLUDE REGEX "^(oniguruma|utf8proc|zlib|zstd|xxhash) ")
    set(zeroplan_optional_dependencies "" PARENT_SCOPE)
  endif()
  if(NOT ARG_TESTS)
    list(FILTER zeroplan_dependencies EXCLUDE REGEX "^doctest ")
  endif()
  set(zeroplan_dependencies ${zeroplan_dependencies} PARENT_SCOPE)
endfunction()

# Sets NAME_FOUND and makes zeroplan::NAME from a header, which defines its version, and a library, which is
# static with ZEROPLAN_RELEASE. With REQUIRED in ARGN it is an error if there is none or an older one.
function(zeroplan_find_library name version header library)
  find_path(${name}_header_folder ${header})
  if(ZEROPLAN_RELEASE)
    find_library(${name}_library lib${library}.a)
  else()
    find_library(${name}_library ${library})
  endif()
  set(found 0)
  if(${name}_header_folder AND ${name}_library)
    file(STRINGS ${${name}_header_folder}/${header} lines REGEX "_(MAJOR|MINOR)[ \t]+[0-9]+")
    string(REGEX MATCH "_MAJOR[ \t]+([0-9]+)" ignored "${lines}")
    set(found ${CMAKE_MATCH_1})
    string(REGEX MATCH "_MINOR[ \t]+([0-9]+)" ignored "${lines}")
    set(found ${found}.${CMAKE_MATCH_1})
  endif()
  if(found VERSION_LESS version)
    set(${name}_FOUND FALSE PARENT_SCOPE)
    if("REQUIRED" IN_LIST ARGN)
      message(FATAL_ERROR "${name} ${version} or newer is missing (found: ${found}); run scripts/setup.sh, or "
        "name its folder in CMAKE_PREFIX_PATH")
    endif()
    return()
  endif()
  set(${name}_FOUND TRUE PARENT_SCOPE)
  if(NOT TARGET zeroplan::${name})
    add_library(zeroplan::${name} UNKNOWN IMPORTED)
    set_target_properties(zeroplan::${name} PROPERTIES
      IMPORTED_LOCATION ${${name}_library}
      INTERFACE_INCLUDE_DIRECTORIES ${${name}_header_folder})
  endif()
endfunction()

# Looks for each, with what else is given: REQUIRED, QUIET. A macro, for the targets and
# NAME_FOUND are the caller's.
macro(zeroplan_find_dependencies)
  zeroplan_find_listed("${zeroplan_dependencies}" ${ARGN})
endmacro()

# The same of `list`, which is written as zeroplan_dependencies is.
macro(zeroplan_find_listed list)
  foreach(dependency ${list})
    string(REPLACE " " ";" dependency "${dependency}")
    list(GET dependency 0 dependency_name)
    list(GET dependency 1 dependency_version)
    list(LENGTH dependency dependency_fields)
    if(dependency_fields GREATER 3)
      list(SUBLIST dependency 3 2 dependency_files)
      zeroplan_find_library(${dependency_name} ${dependency_version} ${dependency_files} ${ARGN})
    else()
      find_package(${dependency_name} ${dependency_version} CONFIG ${ARGN})
    endif()
  endforeach()
endmacro()
