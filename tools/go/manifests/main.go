// manifests reads Kubernetes manifests from standard input as strictly as the API server does with --validate=strict: every
// field must exist in the Go types of the API and of the Prometheus operator. Exit code 1 with one line per mistake.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	rbac "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/util/yaml"
)

func main() {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		apps.AddToScheme, core.AddToScheme, networking.AddToScheme, rbac.AddToScheme, monitoring.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	options := json.SerializerOptions{Yaml: true, Strict: true}
	decoder := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, options)
	reader := yaml.NewYAMLReader(bufio.NewReader(os.Stdin))
	count, wrong := 0, 0
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			panic(err)
		}
		count++
		if _, kind, err := decoder.Decode(document, nil, nil); err != nil {
			wrong++
			fmt.Fprintf(os.Stderr, "%v: %v\n", kind, err)
		}
	}
	fmt.Printf("%d documents, %d wrong\n", count, wrong)
	if wrong > 0 || count == 0 {
		os.Exit(1)
	}
}
