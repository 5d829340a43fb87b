# cpack reads this first, once for each generator: what would make a package that does not work.
if(CPACK_GENERATOR STREQUAL "DEB")
  find_program(shlibdeps dpkg-shlibdeps)
  if(NOT shlibdeps)
    message(FATAL_ERROR "zeroplan: there is no dpkg-shlibdeps, which finds what the package depends on; install "
      "dpkg-dev")
  endif()
endif()
if(CPACK_GENERATOR STREQUAL "TZST")
  set(CPACK_PACKAGING_INSTALL_PREFIX /)
  set(CPACK_COMPONENT_INCLUDE_TOPLEVEL_DIRECTORY ON)
endif()
