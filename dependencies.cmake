# The libraries that zeroplan builds with: the name CMake knows, the least version, the package of
# Debian and Ubuntu. CMakeLists.txt asks for them, scripts/setup.sh for those that are missing.
set(zeroplan_dependencies
  "fmt 9 libfmt-dev"
  "nlohmann_json 3.10 nlohmann-json3-dev"
  "CLI11 2.1 libcli11-dev"
  "Eigen3 3.4 libeigen3-dev"
  "doctest 2.4 doctest-dev")

# find_package for each, with what else is given: REQUIRED, QUIET. A macro, for the targets and
# NAME_FOUND are the caller's.
macro(zeroplan_find_dependencies)
  foreach(dependency ${zeroplan_dependencies})
    string(REPLACE " " ";" dependency "${dependency}")
    list(GET dependency 0 dependency_name)
    list(GET dependency 1 dependency_version)
    find_package(${dependency_name} ${dependency_version} CONFIG ${ARGN})
  endforeach()
endmacro()
