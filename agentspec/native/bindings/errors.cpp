// The core's exceptions become the classes of agentspec.errors.

#include "bindings/bindings.hpp"
#include "core/error.hpp"

namespace agentspec {
namespace {

void raise(const char* class_name, const std::exception& error) {
  const py::object cls = py::module_::import("agentspec.errors").attr(class_name);
  PyErr_SetString(cls.ptr(), error.what());
}

}  // namespace

void register_errors(py::module_&) {
  py::register_local_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const ConfigError& error) {
      raise("ConfigError", error);
    } catch (const TokenError& error) {
      raise("TokenError", error);
    } catch (const UnknownIdError& error) {
      raise("UnknownRequestError", error);
    } catch (const DuplicateIdError& error) {
      raise("DuplicateRequestError", error);
    } catch (const ForkedError& error) {
      raise("ForkedForestError", error);
    } catch (const CapacityError& error) {
      raise("ForestError", error);
    } catch (const IntegrityError& error) {
      PyErr_SetString(PyExc_AssertionError, error.what());
    }
  });
}

}  // namespace agentspec
