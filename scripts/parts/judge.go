package parts

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// IstioValidationResult is the result of Istio's validation of one object.
type IstioValidationResult struct {
	// Stage is the stage that refused the object (see scripts/parts/istiod/judge); "": the object
	// is accepted.
	Stage    string
	Error    string
	Warnings string
}

// ValidateAsIstio validates YAML documents with the code of Istio and Kubernetes, and returns a
// result for each. The first call builds the command judge, which takes minutes.
func ValidateAsIstio(documents []string) ([]IstioValidationResult, error) {
	path, err := istioValidator()
	if err != nil {
		return nil, err
	}
	source, err := IstioSourceDir()
	if err != nil {
		return nil, err
	}
	var in bytes.Buffer
	to := json.NewEncoder(&in)
	for _, d := range documents {
		if err := to.Encode(d); err != nil {
			return nil, fmt.Errorf("encode an object: %w", err)
		}
	}
	answers, err := os.CreateTemp("", "outrider-results-")
	if err != nil {
		return nil, fmt.Errorf("create a file for results: %w", err)
	}
	defer func() { _ = answers.Close(); _ = os.Remove(answers.Name()) }()
	command := exec.Command(path, filepath.Join(source, "manifests", "charts", "base", "files",
		"crd-all.gen.yaml"), answers.Name())
	command.Stdin = &in
	if out, err := command.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("run Istio's validation: %w: %s", err, out)
	}
	results := make([]IstioValidationResult, len(documents))
	from := json.NewDecoder(answers)
	for i := range results {
		if err := from.Decode(&results[i]); err != nil {
			return nil, fmt.Errorf("decode result %d: %w", i, err)
		}
	}
	return results, nil
}

var istioValidator = sync.OnceValues(func() (string, error) {
	out, err := exec.Command(filepath.Join(RepositoryRoot(), "scripts", "get-judge")).Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("get Istio's validation: %w: %s", err, exit.Stderr)
	}
	return strings.TrimSpace(string(out)), err
})
