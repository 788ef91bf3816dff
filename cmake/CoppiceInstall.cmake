# The installed package: find_package(Coppice COMPONENTS attention) gives coppice::attention, static or shared (BUILD_SHARED_LIBS).
# `cmake --install BUILD --component attention` installs it alone.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Coppice)

list(TRANSFORM COPPICE_INSTALLED_LAYERS PREPEND coppice_ OUTPUT_VARIABLE installed_targets)
install(TARGETS ${installed_targets} EXPORT CoppiceTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT attention
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT attention NAMELINK_COMPONENT attention)
foreach(layer IN LISTS COPPICE_INSTALLED_LAYERS)
  install(DIRECTORY include/coppice/${layer} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/coppice COMPONENT attention)
endforeach()
install(EXPORT CoppiceTargets NAMESPACE coppice:: DESTINATION ${package_dir} COMPONENT attention)

# A static library names its private dependencies in the export, so the consumer has to find them; a shared one has linked them.
set(COPPICE_STATIC_DEPENDENCIES)
get_target_property(attention_type coppice_attention TYPE)
if(attention_type STREQUAL "STATIC_LIBRARY")
  get_target_property(attention_libraries coppice_attention LINK_LIBRARIES)
  if(attention_libraries MATCHES "hwy::")
    list(APPEND COPPICE_STATIC_DEPENDENCIES "find_dependency(hwy)")
  endif()
  if(attention_libraries MATCHES "CUDA::")
    list(APPEND COPPICE_STATIC_DEPENDENCIES "find_dependency(CUDAToolkit)")
  endif()
endif()
list(JOIN COPPICE_STATIC_DEPENDENCIES "\n" COPPICE_STATIC_DEPENDENCIES)

configure_package_config_file(cmake/CoppiceConfig.cmake.in ${PROJECT_BINARY_DIR}/CoppiceConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/CoppiceConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/CoppiceConfig.cmake ${PROJECT_BINARY_DIR}/CoppiceConfigVersion.cmake
  DESTINATION ${package_dir} COMPONENT attention)
