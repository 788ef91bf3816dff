# The installed package: find_package(Coppice COMPONENTS attention) gives coppice::attention, COMPONENTS engine coppice::engine too;
# static or shared (BUILD_SHARED_LIBS). `cmake --install BUILD --component attention` installs the former alone; the engine is the
# components attention and engine.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Coppice)

# coppice_install(component export LAYERS ...): the layers' libraries and public headers, and what finds them.
function(coppice_install component export)
  cmake_parse_arguments(ARG "" "" "LAYERS" ${ARGN})
  list(TRANSFORM ARG_LAYERS PREPEND coppice_ OUTPUT_VARIABLE targets)
  install(TARGETS ${targets} EXPORT ${export}
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ${component}
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ${component} NAMELINK_COMPONENT ${component})
  foreach(layer IN LISTS ARG_LAYERS)
    if(EXISTS ${PROJECT_SOURCE_DIR}/include/coppice/${layer})
      install(DIRECTORY include/coppice/${layer} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/coppice COMPONENT ${component})
    endif()
  endforeach()
  install(EXPORT ${export} NAMESPACE coppice:: DESTINATION ${package_dir} COMPONENT ${component})
endfunction()

coppice_install(attention CoppiceTargets LAYERS ${COPPICE_ATTENTION_LAYERS})
if(NOT COPPICE_ATTENTION_ONLY)
  coppice_install(engine CoppiceEngineTargets LAYERS ${COPPICE_ENGINE_LAYERS})
endif()

# A static library names its private dependencies in the export, so the consumer has to find them; a shared one has linked them.
# Of a dependency that is headers alone nothing is left to link: its users wrap it in BUILD_INTERFACE.
set(COPPICE_ATTENTION_DEPENDENCIES)
set(COPPICE_ENGINE_DEPENDENCIES)
get_target_property(attention_type coppice_attention TYPE)
if(attention_type STREQUAL "STATIC_LIBRARY")
  set(COPPICE_ENGINE_DEPENDENCIES
    "find_dependency(dnnl)" "find_dependency(OpenMP COMPONENTS CXX)" "find_dependency(fmt)" "find_dependency(PkgConfig)"
    "pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)" "pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)")
  if(COPPICE_CUDA)
    list(APPEND COPPICE_ENGINE_DEPENDENCIES "find_dependency(CUDAToolkit)")
  endif()
  get_target_property(attention_libraries coppice_attention LINK_LIBRARIES)
  if(attention_libraries MATCHES "CUDA::")
    list(APPEND COPPICE_ATTENTION_DEPENDENCIES "find_dependency(CUDAToolkit)")
  endif()
endif()
list(JOIN COPPICE_ATTENTION_DEPENDENCIES "\n" COPPICE_ATTENTION_DEPENDENCIES)
list(JOIN COPPICE_ENGINE_DEPENDENCIES "\n  " COPPICE_ENGINE_DEPENDENCIES)

configure_package_config_file(cmake/CoppiceConfig.cmake.in ${PROJECT_BINARY_DIR}/CoppiceConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/CoppiceConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/CoppiceConfig.cmake ${PROJECT_BINARY_DIR}/CoppiceConfigVersion.cmake
  DESTINATION ${package_dir} COMPONENT attention)

# For programs that are not built with CMake. Libs.private has the dependencies of a static library: `pkg-config --static`.
set(pc_core "")
set(pc_private "")
if(attention_type STREQUAL "STATIC_LIBRARY")
  set(pc_core " -lcoppice_core")
  set(pc_private " -lstdc++ -lm -lpthread")
  if(COPPICE_CUDA)
    string(APPEND pc_private " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -ldl -lrt")
  endif()
endif()
cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX BASE_DIRECTORY ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig OUTPUT_VARIABLE pc_prefix)
configure_file(cmake/coppice-attention.pc.in ${PROJECT_BINARY_DIR}/coppice-attention.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/coppice-attention.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT attention)
