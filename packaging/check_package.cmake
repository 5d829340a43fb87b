# cpack reads this first, once for each generator: what would make a package that does not work.
if(CPACK_ZEROPLAN_NATIVE AND NOT CPACK_ZEROPLAN_FOR_THIS_CPU)
  message(FATAL_ERROR "zeroplan: this build is tuned for this machine's CPU (ZEROPLAN_NATIVE=ON); a package of it "
    "could end with 'illegal instruction' elsewhere. Build the preset package (cmake --preset package), or, for "
    "machines with this CPU alone, run: cpack -D CPACK_ZEROPLAN_FOR_THIS_CPU=ON")
endif()
if(CPACK_GENERATOR STREQUAL "DEB")
  find_program(shlibdeps dpkg-shlibdeps)
  if(NOT shlibdeps)
    message(FATAL_ERROR "zeroplan: there is no dpkg-shlibdeps, which finds what the package depends on; install "
      "dpkg-dev")
  endif()
endif()
if(CPACK_GENERATOR STREQUAL "TZST")
  set(CPACK_PACKAGING_INSTALL_PREFIX /)
endif()
