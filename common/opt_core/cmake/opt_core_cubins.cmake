# SPDX-License-Identifier: Apache-2.0
# The cubins of the CUDA members, built by build_prebuilt.py into <build>/opt_core/cubin/<family>/, beside libopt_core.so,
# where the library looks, and installed beside it again. What is compiled is kept in the project's build/cubin/cache, so a
# wheel, an editable install and the C tests of one checkout compile each source once.
set(OPT_CORE_CUBINS AUTO CACHE STRING
    "cubins: ON (nvcc 13.0.88 is needed and the bytes must have the committed digests), OFF, DEV (with digests of their own, for work on a kernel), AUTO (as ON in a wheel or where there is an NVIDIA GPU, if nvcc is there; otherwise OFF)")
set_property(CACHE OPT_CORE_CUBINS PROPERTY STRINGS AUTO ON OFF DEV)

# opt_core_cubins(DESTINATION): the folder of libopt_core.so in the installation.
function(opt_core_cubins destination)
  set(script ${CMAKE_CURRENT_SOURCE_DIR}/build_prebuilt.py)
  set(out ${CMAKE_BINARY_DIR}/opt_core/cubin)
  file(GLOB sources CONFIGURE_DEPENDS opt_core/kernels/*/members/*.cu)
  file(GLOB parts CONFIGURE_DEPENDS opt_core/kernels/*/members/*.cuh opt_core/kernels/*/members/*.h
       opt_core/kernels/*/PREBUILT.json opt_core/kernels/*/PREBUILT_RECORD.json)
  if(EXISTS ${CMAKE_BINARY_DIR}/opt_core AND NOT IS_DIRECTORY ${CMAKE_BINARY_DIR}/opt_core)
    file(REMOVE ${CMAKE_BINARY_DIR}/opt_core) # the command, of a build before it moved to bin/
  endif()
  opt_core_cubins_wanted(mode "${sources}" ${script})
  if(NOT mode)
    file(REMOVE_RECURSE ${out}) # a library without this build's cubins refuses; it must not find those of an older one
    return()
  endif()
  set(stamp ${CMAKE_BINARY_DIR}/opt_core_cubins.stamp)
  add_custom_command(OUTPUT ${stamp}
    COMMAND ${Python_EXECUTABLE} ${script} ${mode} --out ${out}
    COMMAND ${CMAKE_COMMAND} -E touch ${stamp}
    DEPENDS ${script} ${sources} ${parts} COMMENT "Cubins of the CUDA members" VERBATIM)
  add_custom_target(opt_core_cubins ALL DEPENDS ${stamp})
  install(DIRECTORY ${out} DESTINATION ${destination}/opt_core FILES_MATCHING PATTERN "*.cubin" PATTERN "PREBUILT*.json")
endfunction()

# What build_prebuilt.py is to do (--check or --dev), or an empty word and a line that says why nothing.
function(opt_core_cubins_wanted out sources script)
  set(${out} "" PARENT_SCOPE)
  set(asked ${OPT_CORE_CUBINS})
  if(NOT asked MATCHES "^(AUTO|ON|OFF|DEV)$")
    message(FATAL_ERROR "opt_core: OPT_CORE_CUBINS is ${asked}, not AUTO, ON, OFF or DEV")
  endif()
  set(how "-DOPT_CORE_CUBINS=ON builds them (pip: -Ccmake.define.OPT_CORE_CUBINS=ON)")
  if(asked STREQUAL "OFF" OR NOT sources)
    message(STATUS "opt_core: no cubins (OPT_CORE_CUBINS=OFF, or no CUDA member)")
    return()
  endif()
  if(asked STREQUAL "AUTO")
    opt_core_nvidia_gpu(gpu)
    if(NOT gpu AND NOT "${SKBUILD_STATE}" MATCHES "wheel")
      message(STATUS "opt_core: no cubins: no NVIDIA GPU on this machine; ${how}")
      return()
    endif()
  endif()
  find_package(Python COMPONENTS Interpreter QUIET)
  if(Python_Interpreter_FOUND)
    execute_process(COMMAND ${Python_EXECUTABLE} ${script} --find RESULT_VARIABLE status OUTPUT_VARIABLE nvcc ERROR_VARIABLE why
                    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_STRIP_TRAILING_WHITESPACE)
  else()
    set(status 3)
    set(why "no Python found to run ${script}")
  endif()
  if(NOT status EQUAL 0)
    if(asked STREQUAL "AUTO")
      message(STATUS "opt_core: no cubins: ${why}; CUDA members will refuse with no_prebuilt")
      return()
    endif()
    message(FATAL_ERROR "opt_core: OPT_CORE_CUBINS=${asked}: ${why}")
  endif()
  message(STATUS "opt_core: cubins by ${nvcc}")
  set(Python_EXECUTABLE ${Python_EXECUTABLE} PARENT_SCOPE)
  if(asked STREQUAL "DEV")
    set(${out} --dev PARENT_SCOPE)
  else()
    set(${out} --check PARENT_SCOPE)
  endif()
endfunction()

function(opt_core_nvidia_gpu out)
  file(GLOB devices /dev/nvidia[0-9]* /dev/nvidiactl /dev/dxg)
  find_program(OPT_CORE_NVIDIA_SMI nvidia-smi)
  mark_as_advanced(OPT_CORE_NVIDIA_SMI)
  if(devices OR OPT_CORE_NVIDIA_SMI)
    set(${out} TRUE PARENT_SCOPE)
  else()
    set(${out} FALSE PARENT_SCOPE)
  endif()
endfunction()
