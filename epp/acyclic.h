/* Included first in what mypyc compiles.

   An object of a class with `acyclic=True` has no header of the garbage collector, in which CPython
   up to 3.13 keeps what its trashcan puts off (Objects/object.c, _PyTrash_thread_deposit_object):
   such objects are freed at once. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#if PY_VERSION_HEX < 0x030E0000
#undef Py_TRASHCAN_BEGIN
#define EPP_PUT_OFF(op, dealloc) \
    (PyObject_IS_GC((PyObject *)(op)) && Py_TYPE(op)->tp_dealloc == (destructor)(dealloc))
#if PY_VERSION_HEX < 0x030D0000
#define Py_TRASHCAN_BEGIN(op, dealloc) \
    Py_TRASHCAN_BEGIN_CONDITION((op), EPP_PUT_OFF(op, dealloc))
#else /* Include/cpython/object.h of 3.13 has no macro with a condition */
#define Py_TRASHCAN_BEGIN(op, dealloc) \
    do { \
        PyThreadState *tstate = PyThreadState_Get(); \
        if (tstate->c_recursion_remaining <= Py_TRASHCAN_HEADROOM && EPP_PUT_OFF(op, dealloc)) { \
            _PyTrash_thread_deposit_object(tstate, (PyObject *)(op)); \
            break; \
        } \
        tstate->c_recursion_remaining--;
#endif
#endif
