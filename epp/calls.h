/* Included in what mypyc compiles, behind acyclic.h: what it calls most of Python, made shorter.

   The type of an object alone decides on its methods and data descriptors, as it does for all that
   Cython compiles and for most built-in types. Python's own functions look into the object too, and
   check what was returned. */

static PyObject *
epp_call(PyObject *called, PyObject *const *args, size_t count, PyObject *names)
{
    PyTypeObject *type = Py_TYPE(called);
    if (PyType_HasFeature(type, Py_TPFLAGS_HAVE_VECTORCALL)) {
        vectorcallfunc call = *(vectorcallfunc *)((char *)called + type->tp_vectorcall_offset);
        if (call != NULL) {
            return call(called, args, count, names);
        }
    }
    return PyObject_Vectorcall(called, args, count, names);
}

static PyObject *
epp_call_method(PyObject *name, PyObject *const *args, size_t count, PyObject *names)
{
    PyTypeObject *type = Py_TYPE(args[0]);
    if (type->tp_getattro == PyObject_GenericGetAttr && type->tp_dictoffset == 0) {
        PyObject *method = _PyType_Lookup(type, name);
        if (method != NULL && PyType_HasFeature(Py_TYPE(method), Py_TPFLAGS_METHOD_DESCRIPTOR)) {
            Py_INCREF(method);
            PyObject *result = epp_call(method, args, (size_t)PyVectorcall_NARGS(count), names);
            Py_DECREF(method);
            return result;
        }
    }
    return PyObject_VectorcallMethod(name, args, count, names);
}

static PyObject *
epp_attribute(PyObject *self, PyObject *name)
{
    PyTypeObject *type = Py_TYPE(self);
    if (type->tp_getattro == PyObject_GenericGetAttr) {
        PyObject *found = _PyType_Lookup(type, name);
        PyTypeObject *kind = found == NULL ? NULL : Py_TYPE(found);
        if (kind != NULL && kind->tp_descr_set != NULL && kind->tp_descr_get != NULL) {
            Py_INCREF(found);
            PyObject *value = kind->tp_descr_get(found, self, (PyObject *)type);
            Py_DECREF(found);
            return value;
        }
    }
    return PyObject_GetAttr(self, name);
}

static inline double
epp_as_double(PyObject *number)
{
    return PyFloat_CheckExact(number) ? PyFloat_AS_DOUBLE(number) : PyFloat_AsDouble(number);
}

#define PyObject_Vectorcall epp_call
#define PyObject_VectorcallMethod epp_call_method
#define PyObject_GetAttr epp_attribute
#define PyFloat_AsDouble epp_as_double
