/* Included in what mypyc compiles, behind acyclic.h: what it calls most of Python, made shorter.

   The type of an object alone decides on its methods and data descriptors, as it does for all that
   Cython compiles and for most built-in types. Python's own functions look into the object too, and
   check what was returned.

   Each place that looks up a name keeps what it found last. All places share Python's own table,
   in which two that meet push each other out at each turn. */

/* No two types have the same version, and a type that changes gets another: as long as it has this
   one, it has what was found, to which no reference is held. Version 0 is that of a type without
   one. */
typedef struct {
    unsigned int version;
    PyObject *name;
    PyObject *found;
} epp_last;

static inline PyObject *
epp_lookup(epp_last *last, PyTypeObject *type, PyObject *name)
{
    if (last->version == type->tp_version_tag && last->name == name) {
        return last->found;
    }
    PyObject *found = _PyType_Lookup(type, name);
    Py_INCREF(name);
    Py_XSETREF(last->name, name);
    last->version = type->tp_version_tag;
    last->found = last->version == 0 ? NULL : found;
    return found;
}

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
epp_call_method(epp_last *last, PyObject *name, PyObject *const *args, size_t count,
                PyObject *names)
{
    PyTypeObject *type = Py_TYPE(args[0]);
    if (type->tp_getattro == PyObject_GenericGetAttr && type->tp_dictoffset == 0) {
        PyObject *method = epp_lookup(last, type, name);
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
epp_attribute(epp_last *last, PyObject *self, PyObject *name)
{
    PyTypeObject *type = Py_TYPE(self);
    if (type->tp_getattro == PyObject_GenericGetAttr) {
        PyObject *found = epp_lookup(last, type, name);
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
#define PyObject_VectorcallMethod(...) \
    ({ static epp_last last_here; epp_call_method(&last_here, __VA_ARGS__); })
#define PyObject_GetAttr(...) \
    ({ static epp_last last_here; epp_attribute(&last_here, __VA_ARGS__); })
#define PyFloat_AsDouble epp_as_double
