# cpack -G DEB: the package zeroplan, or, of a build without the executor, zeroplan-planner. What it
# depends on is what dpkg-shlibdeps finds that the programs load. cpack -G TZST: the same files, to be
# unpacked anywhere.
set(CPACK_PACKAGE_NAME zeroplan)
if(NOT ZEROPLAN_EXECUTOR)
  set(CPACK_PACKAGE_NAME zeroplan-planner)
endif()
set(CPACK_PACKAGE_VENDOR "zeroplan")
set(CPACK_PACKAGE_CONTACT "zeroplan maintainers <zeroplan@noreply.invalid>" CACHE STRING
  "Who answers for the package: a name and an address")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "planner and executor of ZeRO training of transformers")
set(CPACK_PACKAGE_DESCRIPTION "zeroplan finds the fastest ZeRO stage, offload, recompute and batch for a
transformer on given GPUs, and says why the others lose and where the answer
would change. It plans for its own executor, for DeepSpeed and for FSDP2,
without a GPU.
")
if(NOT ZEROPLAN_EXECUTOR)
  string(APPEND CPACK_PACKAGE_DESCRIPTION "This package plans alone; the package zeroplan also trains.")
elseif(ZEROPLAN_WITH_CUDA)
  string(APPEND CPACK_PACKAGE_DESCRIPTION "The executor trains as planned, on NVIDIA GPUs and on the CPU.")
else()
  string(APPEND CPACK_PACKAGE_DESCRIPTION "The executor trains as planned, on the CPU: this build has no CUDA.")
endif()

# Of an installation only these: what other parts of the tree install has packages of its own.
set(CPACK_COMPONENTS_ALL programs manual documentation)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)

string(TOLOWER ${CMAKE_SYSTEM_NAME} system)
set(CPACK_SYSTEM_NAME ${system}-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION "${CPACK_PACKAGE_DESCRIPTION}")
if(ZEROPLAN_EXECUTOR)
  set(CPACK_DEBIAN_PACKAGE_CONFLICTS zeroplan-planner)
  set(CPACK_DEBIAN_PACKAGE_REPLACES zeroplan-planner)
else()
  set(CPACK_DEBIAN_PACKAGE_CONFLICTS zeroplan)
  set(CPACK_DEBIAN_PACKAGE_REPLACES zeroplan)
endif()

set(CPACK_PROJECT_CONFIG_FILE ${CMAKE_SOURCE_DIR}/packaging/check_package.cmake)
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_SOURCE_DIR}/packaging/debian_layout.cmake)
set(CPACK_ZEROPLAN_SOURCE_DIR ${CMAKE_SOURCE_DIR})
include(CPack)
