# Compiles hwprofiles/*/*.json into the library, so that the binary needs no files beside it.
file(GLOB profile_files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/hwprofiles/*/*.json)
list(SORT profile_files)
set(profile_rows "")
foreach(profile_file ${profile_files})
  get_filename_component(profile_name ${profile_file} NAME_WLE)
  get_filename_component(profile_folder ${profile_file} DIRECTORY)
  get_filename_component(profile_folder ${profile_folder} NAME)
  file(READ ${profile_file} profile_text)
  # [ and ; mean something in CMake's lists; a quoted append keeps both as they are.
  string(APPEND profile_rows
    "    EmbeddedFile{\"${profile_folder}\", \"${profile_name}\", R\"profile_json(${profile_text})profile_json\"},\n")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${profile_file})
endforeach()
set(embedded_source ${CMAKE_BINARY_DIR}/generated/embedded_profiles.cc)
file(CONFIGURE OUTPUT ${embedded_source} @ONLY CONTENT [[
// Written by hwprofiles/embed.cmake.
#include "hwprofiles/parts.h"

namespace zeroplan {
namespace {
constexpr EmbeddedFile kFiles[] = {
@profile_rows@};
}  // namespace

std::span<const EmbeddedFile> EmbeddedFiles() { return kFiles; }

}  // namespace zeroplan
]])
target_sources(zeroplan_hwprofiles PRIVATE ${embedded_source})
