# Compiles hwprofiles/profiles/*.json into the library, so that the binary needs no files beside it.
file(GLOB profile_files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/hwprofiles/profiles/*.json)
list(SORT profile_files)
set(profile_rows "")
foreach(profile_file ${profile_files})
  get_filename_component(profile_name ${profile_file} NAME_WLE)
  file(READ ${profile_file} profile_text)
  string(APPEND profile_rows
    "    EmbeddedProfile{\"${profile_name}\", R\"profile_json(${profile_text})profile_json\"},\n")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${profile_file})
endforeach()
set(embedded_source ${CMAKE_BINARY_DIR}/generated/embedded_profiles.cc)
file(CONFIGURE OUTPUT ${embedded_source} @ONLY CONTENT [[
// Written by hwprofiles/embed.cmake.
#include "hwprofiles/embedded.h"

namespace zeroplan {
namespace {
constexpr EmbeddedProfile kProfiles[] = {
@profile_rows@};
}  // namespace

std::span<const EmbeddedProfile> EmbeddedProfiles() { return kProfiles; }

}  // namespace zeroplan
]])
target_sources(zeroplan_hwprofiles PRIVATE ${embedded_source})
