# The installed package: find_package(Coppice COMPONENTS attention) gives coppice::attention.
include(CMakePackageConfigHelpers)
install(TARGETS coppice_core coppice_attention EXPORT CoppiceTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT attention)
install(DIRECTORY include/coppice DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT attention)
install(EXPORT CoppiceTargets NAMESPACE coppice:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Coppice COMPONENT attention)
configure_package_config_file(cmake/CoppiceConfig.cmake.in ${PROJECT_BINARY_DIR}/CoppiceConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Coppice)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/CoppiceConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/CoppiceConfig.cmake ${PROJECT_BINARY_DIR}/CoppiceConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Coppice COMPONENT attention)
