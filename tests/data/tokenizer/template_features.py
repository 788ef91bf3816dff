"""Templates that use what Jinja has beyond what the published chat templates need, by area. Some of them are refused by jinja2: the
engine must fail too. make_template_renderings.py renders them."""

FEATURES = [
    # Tuples, views of dicts, generators.
    "{{ (1,) }}{{ () }}{{ (1, 'a') }}{{ [(1,), [2]] }}{{ 1, 2 }}{{ (1, 2) + (3,) }}{{ (1, 2, 3)[1:] }}{{ (1, 2) == [1, 2] }}"
    "{{ (1, 2) == (1, 2) }}{{ (1, 2)[-1] }}{{ (1, (2, [3])) | tojson }}{{ (1, 2) | list }}{{ {'a': 1, 'b': 2} | dictsort }}"
    "{{ {'a': 1} | items | list }}{{ (1, 2) < (1, 3) }}{{ (1) }}{{ 2 in (1, 2) }}",
    "{{ {'a': 1}.items() }}{{ {'a': 1}.keys() }}{{ {'a': 1}.values() }}{{ {}.items() }}{{ {'a': 1}.items() | list }}"
    "{{ {'a': 1}.keys() == ['a'] }}{{ {'a': 1}.items() | length }}{{ {'a': 1}.keys() is sequence }}"
    "{{ {'a': 1}.keys() is iterable }}{{ {'a': 1}.keys()[0] is defined }}{{ 'a' in {'a': 1}.keys() }}{{ 1 in {'a': 1}.values() }}",
    "{{ {'a': 1}.items() | tojson }}", "{{ {'a': 1}.keys() + ['b'] }}", "{{ [1] + (2,) }}", "{{ [1] < (2,) }}",
    "{{ [1] | map('string') | length }}", "{{ [1] | select | tojson }}", "{{ [1, 2] | select('odd') | last }}",
    "{{ 'x'.startswith(['x']) }}",
    "{% if [] | select %}always{% endif %}{% set g = [1, 2] | map('string') %}{{ g | list }}{{ g | list }}"
    "{{ [3, 4] | reject('odd') | first }}{{ [1, 2] | select is sequence }}{% set h = [1, 2, 3] | map('string') %}{{ h | first }}"
    "{{ h | join }}{% set k = [1, 2, 3] | select %}{{ 2 in k }}{{ k | list }}{{ ([1] | map('int'))[0] is defined }}",
    # Sorting and the filters of keys.
    "{{ [3, 1, 2] | sort }}{{ [3, 1, 2] | sort(reverse=true) }}{{ ['b', 'A', 'a', 'B'] | sort }}"
    "{{ ['b', 'A', 'a', 'B'] | sort(case_sensitive=true) }}{{ ['b', 'A', 'a'] | sort(true, true) }}{{ [] | sort }}"
    "{{ 'hello' | sort | join }}{{ {'b': 1, 'a': 2} | sort }}{{ [1.5, true, 0] | sort }}{{ [[2, 1], [1, 3], [1, 2]] | sort }}"
    "{{ (2, 1) | sort }}{{ [none, none] | sort }}{{ [(1, 'b'), (1, 'a')] | sort }}",
    "{{ [{'a': 2, 'b': 'x'}, {'a': 1, 'b': 'Y'}, {'a': 2, 'b': 'X'}] | sort(attribute='a') }}"
    "{{ [{'a': 2, 'b': 'x'}, {'a': 1, 'b': 'Y'}, {'a': 2, 'b': 'W'}] | sort(attribute='a,b') | map(attribute='b') | join }}"
    "{{ [{'a': {'b': 2}}, {'a': {'b': 1}}] | sort(attribute='a.b') }}{{ [[1, 9], [2, 3]] | sort(attribute=1) }}"
    "{{ [[1, 9], [2, 3]] | sort(attribute='1') }}"
    "{{ [{'a': 1, 'n': 1}, {'a': 0, 'n': 2}, {'a': 1, 'n': 3}] | sort(attribute='a', reverse=true) | map(attribute='n') | list }}",
    "{{ [1, 'a'] | sort }}", "{{ [{}, {'a': 1}] | sort }}", "{{ [none, 1] | sort }}", "{{ 5 | sort }}",
    "{{ [1, 2] | sort(attribute='a') }}", "{{ none | sort }}",
    "{{ {'b': 1, 'A': 3, 'c': 2} | dictsort }}{{ {'b': 1, 'A': 3, 'a': 2} | dictsort(true) }}"
    "{{ {'b': 1, 'A': 3, 'c': 2} | dictsort(by='value') }}{{ {'b': 1, 'A': 3, 'c': 2} | dictsort(false, 'value', true) }}"
    "{{ {'b': 1, 'a': 1} | dictsort(reverse=true) }}{% for k, v in {'z': 'x', 'y': 'X'} | dictsort(by='value') %}{{ k }}{{ v }}"
    "{% endfor %}{{ {} | dictsort }}",
    "{{ {'a': 1} | dictsort(by='x') }}", "{{ [1] | dictsort }}", "{{ {'a': 1, 'b': 'x'} | dictsort(by='value') }}",
    "{{ ['a', 'b', 'A', 'b'] | unique | list }}{{ ['a', 'A'] | unique(true) | list }}{{ [1, 1.0, true, '1', 2] | unique | list }}"
    "{{ [{'a': 1, 'b': 2}, {'a': 1, 'b': 3}] | unique(attribute='a') | list }}{{ [(1, 2), (1, 2), (1, 3)] | unique | list }}"
    "{{ [none, none] | unique | list }}{{ 'abca' | unique | join }}{{ [0.5, 0.5, 1e300] | unique | list }}",
    "{{ [[1], [1]] | unique | list }}", "{{ [{}] | unique | list }}",
    "{% for g in [{'r': 'b', 'n': 1}, {'r': 'a', 'n': 2}, {'r': 'B', 'n': 3}] | groupby('r') %}{{ g.grouper }}"
    "{{ g.list | map(attribute='n') | list }}{{ g[0] }}{{ g | length }};{% endfor %}"
    "{% for k, l in [{'r': 'b', 'n': 1}, {'n': 2}] | groupby('r', default='none') %}{{ k }}={{ l }}{% endfor %}"
    "{{ [{'a': 'x'}, {'a': 'X'}] | groupby('a', case_sensitive=true) }}{{ [{'a': 'x'}, {'a': 'X'}] | groupby('a') }}"
    "{{ [] | groupby('a') }}{{ [['a', 1], ['b', 2], ['a', 3]] | groupby(0) | map(attribute=1) | list }}",
    "{{ [3, 1, 2] | min }}{{ [3, 1, 2] | max }}{{ ['b', 'A'] | min }}{{ ['b', 'A', 'B'] | max }}{{ ['b', 'A'] | min(true) }}"
    "{{ [] | max }}{{ [] | min is defined }}{{ [{'a': 2}, {'a': 1}] | min(attribute='a') }}{{ [1, 1.0] | max }}"
    "{{ 'hello' | max }}{{ [0, 2, 2.0] | max }}{{ {'b': 1, 'a': 2} | min }}{{ [1, true] | min }}",
    "{{ [1, 'a'] | min }}", "{{ [none, none] | max }}",
    "{{ [1, 2, 3] | sum }}{{ [1, 0.5] | sum }}{{ [] | sum }}{{ [{'n': 2}, {'n': 3}] | sum('n') }}{{ [1, 2] | sum(start=10) }}"
    "{{ [[1], [2]] | sum(start=[]) }}{{ [true, true] | sum }}{{ messages | map(attribute='content') | map('length') | sum }}",
    "{{ ['a'] | sum }}", "{{ ['a'] | sum(start='') }}", "{{ [1] | sum('n') }}",
    # Lists.
    "{{ [1, 2, 3] | reverse | list }}{{ 'héllo' | reverse }}{{ (1, 2) | reverse | list }}{{ {'a': 1, 'b': 2} | reverse | list }}"
    "{{ nope | reverse | list }}{{ [1, 2] | select | reverse }}{{ '' | reverse }}{% for m in messages | reverse %}{{ m.role }} "
    "{% endfor %}",
    "{{ 5 | reverse }}", "{{ none | reverse }}",
    "{{ [1, 2, 3, 4, 5] | batch(2) | list }}{{ [1, 2, 3] | batch(2, 'x') | list }}{{ [] | batch(3) | list }}"
    "{{ 'abcde' | batch(3, '-') | map('join') | join('|') }}{{ [1, 2] | batch(5, 0) | list }}"
    "{{ [1, 2, 3, 4, 5] | slice(2) | list }}{{ [1, 2, 3, 4, 5] | slice(3, 'x') | list }}{{ [1] | slice(3) | list }}"
    "{{ [1, 2, 3, 4] | slice(2, 'x') | list }}",
    "{{ [1] | slice(0) | list }}",
    "{{ [1, 2, 1].count(1) }}{{ [1, 2].index(2) }}{{ (1, 2).index(1) }}{{ [1, 2].copy() }}{{ {'a': 1}.copy() }}"
    "{{ [{'a': 1}].index({'a': 1}) }}{{ [1] * 3 }}{{ 2 * (1, 2) }}{{ [1] * 0 }}{{ [1] * -1 }}",
    "{{ [1].index(2) }}", "{{ [1].append(2) }}", "{{ {'a': 1}.update({'b': 2}) }}", "{{ {'a': 1}.pop('a') }}{{ 1 }}",
    "{% if false %}{{ [1].append(2) }}{% endif %}ok",
    "{{ [{'a': 1}, {}] | map(attribute='a', default=7) | list }}{{ [{'a': {'b': 1}}, {'a': {}}] | map(attribute='a.b', default='-"
    "') | list }}{{ [[5, 6], [7, 8]] | map(attribute=1) | list }}{{ [[5, [6]], [7, [8]]] | map(attribute='1.0') | list }}"
    "{{ [1, 2, 3] | select('>', 1) | list }}{{ [1, 2, 3] | reject('le', 2) | list }}"
    "{{ [{'a': 1}, {'a': 3}] | selectattr('a', 'gt', 2) | list }}{{ ['ab', 'c'] | map('replace', 'a', 'x') | list }}"
    "{{ ['b', 'a'] | map('upper') | sort | join }}{{ [{'a': [1]}, {'a': []}] | selectattr('a') | list }}"
    "{{ [[1, 2], [3]] | map('sum') | list }}{{ [[1, 2], [0, 3]] | selectattr(0) | list }}{{ [3, 4] | map('format') is defined }}"
    "{{ [{'a': 1}] | join(',', 'a') }}{{ [{'a': 1}, {'a': 2}] | join(',', attribute='a') }}",
    "{{ [{'a': 1}] | map(attribute='b.c') | list }}", "{{ [1] | map('nope') | list }}", "{{ [1] | select('nope') | list }}",
    "{{ [1] | map(attribute='a', wrong=1) | list }}", "{{ nope | map(attribute='a') | list }}",
    # Numbers.
    "{{ 2.5 | round }}{{ 3.5 | round }}{{ -2.5 | round }}{{ 42 | round }}{{ 42.55 | round(1) }}{{ 2.675 | round(2) }}"
    "{{ 1234.5 | round(-2) }}{{ 1250 | round(-2) }}{{ 1350 | round(-2) }}{{ 0.5 | round }}{{ 42.55 | round(1, 'floor') }}"
    "{{ 42.51 | round(method='ceil') }}{{ 42 | round(method='floor') }}{{ 1e20 | round }}{{ 1e-7 | round(3) }}{{ true | round }}"
    "{{ 15 | round(-1) }}{{ 25 | round(-1) }}{{ 7 | round(-1) }}{{ -25 | round(-1) }}{{ 55.5 | round(-2) }}{{ 45.5 | round(-2) }}"
    "{{ 4.4 | round(-3) }}{{ -42.55 | round(1, 'ceil') }}{{ 1234.567 | round(2, 'ceil') }}{{ 50.0 | round(-2) }}"
    "{{ 99.999 | round(2) }}{{ 123456789.123456789 | round(4) }}{{ -0.4 | round }}{{ -0.4 | round(method='ceil') }}"
    "{{ 12 | round(-2, 'ceil') }}{{ 2.5 | round | int }}{{ 1e308 | round(-308) }}{{ 3.0 | round(400) }}",
    "{{ 1 | round(method='up') }}", "{{ 'a' | round }}", "{{ none | round }}",
    "{{ 2 ** 3 }}{{ 2 ** -1 }}{{ 2 ** 0.5 }}{{ 2 ** 3 ** 2 }}{{ -2 ** 2 }}{{ 2 ** 3 * 2 }}{{ (-8) ** 3 }}{{ 2.0 ** 3 }}"
    "{{ 0 ** 0 }}{{ true ** 2 }}{{ 10 ** 18 }}{{ 2 ** 62 }}{{ (-2) ** 63 }}{{ 1 ** 99999999999 }}{{ (-1) ** 99999999999 }}"
    "{{ 2 ** 3 | string }}{{ 4 ** 0.5 == 2 }}{{ 7 // 2 ** 2 }}{{ 0 ** 5 }}{{ 2 ** false }}{{ 1e200 ** 0.5 }}",
    "{{ 0 ** -1 }}", "{{ 'a' ** 2 }}", "{{ 10.0 ** 400 }}", "{{ nope ** 2 }}",
    "{{ -7.5 // 2 }}{{ -7.5 % 2 }}{{ 7.5 % -2 }}{{ 6.0 // 0.1 }}{{ 1 % 0.1 }}{{ -6.0 % 3 }}{{ 7 // -2.0 }}{{ 0.0 % -3 }}"
    "{{ 5 % 3.5 }}{{ 1e300 // 1e-5 }}",
    "{{ -3 | abs }}{{ (-3) | abs }}{{ -2.5 | abs }}{{ true | abs }}{{ '3.5' | float }}{{ 'x' | float }}{{ 'x' | float(1.5) }}"
    "{{ 3 | float }}{{ ' 1e3 ' | float }}{{ '1_000.5' | float }}{{ none | float }}{{ 'inf' | float }}{{ '-Infinity' | float }}"
    "{{ '+.5' | float }}{{ '1__0' | float(0.25) }}{{ '--1' | float(0.25) }}{{ '5.' | float }}{{ 'nano' | float(2.0) }}"
    "{{ true | float }}{{ '' | float(9) }}{{ '1e400' | float }}{{ '42.7' | int }}{{ '1_000' | int }}{{ '0x1f' | int(0, 16) }}"
    "{{ 'ff' | int(base=16) }}{{ '101' | int(0, 2) }}{{ '0b11' | int(0, 0) }}{{ '-12' | int }}{{ '1e3' | int }}{{ 2.9 | int }}"
    "{{ -2.9 | int }}{{ 'zz' | int(-1) }}{{ none | int(5) }}{{ [] | int }}{{ ' 7\n' | int }}{{ '_1' | int }}{{ 'nan' | int(3) }}"
    "{{ true | int }}{{ '+5' | int }}{{ '' | int }}{{ '٣' | int is number }}",
    "{{ 'inf' | float | int }}", "{{ 'a' | abs }}",
    "{{ 'ab' * 3 }}{{ 2 * 'ab' }}{{ 'x' * 0 }}{{ 'x' * -4 }}{{ '-' * 10 }}{{ 'é' * true }}", "{{ 'a' * 'b' }}", "{{ 'a' * 1.5 }}",
    "{{ [1] * [2] }}", "{{ 'a' - 'b' }}",
    "{{ [1, 2] < [1, 3] }}{{ [1] < [1, 0] }}{{ [] < [0] }}{{ ['a', 2] >= ['a', 1] }}{{ [1, 2] <= [1, 2] }}"
    "{{ [none, 1] < [none, 2] }}{{ 'nan' | float == 'nan' | float }}{{ 'nan' | float < 1 }}{{ 'nan' | float >= 1 }}",
    "{{ [1] < ['a'] }}", "{{ {} < {} }}", "{{ none < 1 }}", "{{ 1 in 'abc' }}", "{{ 1 in 5 }}",
    # Formatting.
    "{{ '%s-%s' | format(1, 'a') }}{{ '%d %i %5d|%-5d|%05d|%+d|% d' | format(1, 2, 3, 4, 5, 6, 7) }}"
    "{{ '%.2f %5.1f %e %g %G' | format(1.005, 2.25, 12345.678, 0.00001, 1e20) }}"
    "{{ '%x %X %o %#x %#o' | format(255, 255, 8, 255, 8) }}{{ '%c%c' | format('a', 233) }}{{ '%%' | format }}"
    "{{ '%r %s' | format('a', 'a') }}{{ '%(a)s %(b)d' | format(a=1, b=2) }}{{ '%5s|%-5s|%.2s' | format('a', 'é', 'abc') }}"
    "{{ '%*d' | format(5, 42) }}{{ '%.*f' | format(2, 3.14159) }}{{ '%-*d|' | format(4, 1) }}{{ '%s' | format(none) }}"
    "{{ '%s' | format([1, 'a']) }}{{ '%d' | format(3.99) }}{{ '%d' | format(true) }}",
    "{{ '%s' % 'a' }}{{ '%s %s' % (1, 2) }}{{ '%d items' % 3 }}{{ '%(k)s' % {'k': 'v'} }}{{ '%s' % {'k': 1} }}{{ '%.3f' % 2 }}"
    "{{ '%s' % [1, 2] }}{{ '%05.1f' % -2.5 }}{{ '%+.1e' % 12345 }}{{ '%010d' % -42 }}{{ '%.3d' % 7 }}{{ '%#.0f' % 3 }}"
    "{{ '%g' % 100000 }}{{ '%g' % 1000000 }}{{ '%ld' % 5 }}{{ '%x' % -255 }}{{ '%s' % (none,) }}{{ '% 5d' % 42 }}"
    "{{ '%s' % true }}{{ '%F' % 1.5 }}{{ '%06d' % 123456789 }}",
    "{{ '%d' | format('a') }}", "{{ '%s %s' | format(1) }}", "{{ '%s' | format(1, 2) }}", "{{ '%z' | format(1) }}",
    "{{ '%' | format(1) }}", "{{ '%(a)s' | format(1) }}", "{{ '%x' | format(1.5) }}", "{{ 'a' % 'b' }}",
    "{{ '%(a)s' | format(b=1) }}", "{{ '%s' | format(1, a=2) }}", "{{ '%c' | format('ab') }}", "{{ '%f' % 'a' }}",
    "{{ '%5%|' % () }}", "{{ '%5%|' % (1,) }}", "{{ '%(a)%' % {'a': 1} }}", "{{ 'a%%' % 1 }}", "{{ '%%' % () }}",
    "{{ '{} {}'.format(1, 'a') }}{{ '{0}{1}{0}'.format('a', 'b') }}{{ '{a}-{b}'.format(a=1, b=2) }}{{ '{{}}'.format() }}"
    "{{ '{:5}|{:<5}|{:>5}|{:^5}|{:*^7}'.format('a', 'b', 'c', 'd', 'e') }}"
    "{{ '{:5d}|{:05d}|{:+d}|{:,}|{:_}'.format(1, 2, 3, 1234567, 1234567) }}"
    "{{ '{:.2f}|{:8.3f}|{:e}|{:g}|{:.1%}|{:%}'.format(1.5, 2.25, 1e5, 0.1, 0.256, 1) }}"
    "{{ '{:x}|{:X}|{:#x}|{:b}|{:#o}|{:_b}'.format(255, 255, 255, 5, 8, 1023) }}{{ '{:.2}'.format('abc') }}"
    "{{ '{!r}|{!s}'.format('a', 'b') }}{{ '{0[1]}|{0[0]}'.format([1, 2]) }}{{ '{0.a}|{a[b]}'.format({'a': 1}, a={'b': 2}) }}"
    "{{ '{:{}}|{:>{w}}'.format('a', 3, 'b', w=4) }}{{ '{}|{}|{}'.format(none, true, [1, 'a']) }}"
    "{{ '{:d}|{:5}'.format(true, false) }}{{ '{:,.2f}'.format(1234567.891) }}{{ '{:=+6d}'.format(42) }}{{ '{:05}'.format('a') }}"
    "{{ '{:é>4}'.format('a') }}{{ '{}'.format(1.0) }}{{ '{:6}|{:<6}|'.format(1.5, 2.5) }}{{ '{:06.2f}'.format(-1.5) }}"
    "{{ '{:f}'.format(3) }}{{ '{: d}'.format(3) }}{{ '{:s}'.format('a') }}",
    "{{ '{}'.format() }}", "{{ '{a}'.format(b=1) }}", "{{ '{:d}'.format('a') }}", "{{ '{:d}'.format(1.5) }}", "{{ '{'.format(1) }}",
    "{{ '}'.format(1) }}", "{{ '{:q}'.format(1) }}", "{{ '{} {0}'.format(1) }}", "{{ '{:5}'.format([1]) }}",
    "{{ '{:.2d}'.format(1) }}", "{{ '{:=5}'.format('a') }}", "{{ '{:,x}'.format(5) }}", "{{ '{:5}'.format(none) }}",
    # Filters of text.
    "{{ 'hello world-foo (bar) <x> éa' | title }}{{ 'HELLO' | title }}{{ \"it's\" | title }}|{{ 'x' | center(5) }}|"
    "{{ 'xy' | center(5) }}|{{ 'abc' | center(6) }}|{{ 'abc' | center(1) }}|{{ 'a b  c_d é1' | wordcount }}{{ '' | wordcount }}"
    "{{ \"it's\" | wordcount }}{{ '<a href=\"x\">\\'&</a>' | escape }}{{ '<' | e }}{{ 1 | e }}{{ '&amp;' | forceescape }}"
    "{{ '<b>' | safe }}{{ none | safe }}{{ 5 | title }}{{ 'aBC' | capitalize }}",
    "{{ 'a\nb\n\nc' | indent }}|{{ 'a\nb' | indent(2, true) }}|{{ 'a\n\nb' | indent(2, blank=true) }}|{{ 'a\nb' | indent('> ') }}"
    "|{{ 'a\nb' | indent('> ', first=true) }}|{{ '' | indent(2, true) }}|{{ 'a\n' | indent(1) }}|{{ 'a\r\nb' | indent(1) }}|"
    "{{ '\n' | indent(1, true, true) }}|{{ 'a\n\n' | indent(1, blank=true) }}|{{ {'a': [1]} | tojson(indent=1) | indent(3) }}|"
    "{{ 'a\nb' | indent(0) }}|{{ 'a\u2028b' | indent(1) }}",
    "{{ 5 | indent }}",
    "{{ 'hello world foo' | truncate(9) }}|{{ 'hello world foo' | truncate(9, true) }}|"
    "{{ 'hello world foo' | truncate(9, false, '..', 0) }}|{{ 'hello world' | truncate(11) }}|{{ 'hello world!' | truncate(8) }}|"
    "{{ 'abc' | truncate }}|{{ 'helloworldfoo' | truncate(5, leeway=0) }}|{{ 'héé wörld foo bar' | truncate(8, end='…') }}|"
    "{{ 'a b c d e f g' | truncate(4, leeway=0) }}",
    "{{ 'hello' | truncate(2) }}",
    "{{ 'aaa' | replace('a', 'b', 2) }}{{ 'ab' | replace('', '-') }}{{ 'ab'.replace('', '-', 1) }}{{ ''.replace('', 'x') }}"
    "{{ 'aaa'.replace('a', '', 1) }}{{ 'abc' | replace('b', '') }}{{ 'éa'.replace('', '.') }}{{ 5 | replace('5', '6') }}"
    "{{ 'aaa'.replace('a', 'b', -1) }}{{ 'aaa'.replace('a', 'b', 0) }}",
    "{{ {'é': ['ü', '🙂', '\\x7f', '\\n']} | tojson(ensure_ascii=true) }}{{ 'é' | tojson(ensure_ascii=false) }}"
    "{{ 'inf' | float | tojson }}{{ ['nan' | float, '-inf' | float] | tojson }}"
    "{{ {'b': 1, 'a': (1, 2)} | tojson(sort_keys=true) }}",
    "{{ {'a': 1} | attr('a') is defined }}{% set ns = namespace(a=1) %}{{ ns | attr('a') }}{{ ns | attr('b') is defined }}"
    "{{ 'x' | attr('upper') is callable }}{{ {'items': 1}.items is callable }}{{ {'items': 1}['items'] }}"
    "{{ {'a': 1}['items'] is callable }}{{ {'a': 1}.keys is defined }}{{ {'type': 'array'}['items'] is defined }}"
    "{{ {'a': 1}.pop is defined }}{{ 'x'.nope is defined }}{{ [1].index is callable }}{{ {'get': 2}.get is number }}",
    # Methods of strings.
    "{{ 'héllo'.find('l') }}{{ 'hello'.find('z') }}{{ 'hello'.rfind('l') }}{{ 'hello'.find('l', 3) }}"
    "{{ 'hello'.find('l', 0, 2) }}{{ 'hello'.find('') }}{{ 'hello'.rfind('') }}{{ 'abc'.find('', 4) }}{{ 'abc'.find('', 3) }}"
    "{{ 'abc'.find('c', -1) }}{{ 'hello'.index('e') }}{{ 'hello'.rindex('l') }}{{ 'banana'.count('a') }}"
    "{{ 'banana'.count('ana') }}{{ 'abc'.count('') }}{{ 'banana'.count('a', 2) }}{{ 'banana'.count('a', 2, -1) }}"
    "{{ ', '.join(['a', 'b']) }}{{ ''.join([]) }}{{ '-'.join('abc') }}{{ '-'.join({'a': 1, 'b': 2}) }}"
    "{{ ','.join(messages | map(attribute='role')) }}{{ 'é🙂x'.rfind('x') }}{{ 'abab'.rfind('ab', 0, 3) }}"
    "{{ 'abc'.find('b', 2, 1) }}{{ 'abc'.count('', 5) }}",
    "{{ 'hello'.index('z') }}", "{{ 'hello'.rindex('z') }}", "{{ ','.join([1]) }}", "{{ 'a'.find(1) }}", "{{ 'a'.join(5) }}",
    "{{ nope.join(['a']) }}", "{{ 5.5.join(['a']) }}",
    "{{ 'a,b,c'.rsplit(',', 1) }}{{ 'a,b,c'.rsplit(',') }}{{ ' a b  c '.rsplit(none, 1) }}{{ ' a b  c '.rsplit() }}"
    "{{ 'a--b--c'.rsplit('--', 1) }}{{ 'abc'.rsplit(',', 2) }}{{ '  a b'.rsplit(none, 1) }}{{ 'a b'.rsplit(maxsplit=0) }}"
    "{{ 'aaa'.rsplit('aa', 1) }}{{ 'a=b=c'.partition('=') }}{{ 'a=b=c'.rpartition('=') }}{{ 'abc'.partition('=') }}"
    "{{ 'abc'.rpartition('=') }}{{ 'a\nb\r\nc\n'.splitlines() }}{{ 'a\nb\r\nc'.splitlines(true) }}{{ ''.splitlines() }}"
    "{{ 'a\x0bb\x1cc\x85d'.splitlines() }}{{ 'prefix-a'.removeprefix('prefix-') }}{{ 'a'.removeprefix('b') }}"
    "{{ 'a.txt'.removesuffix('.txt') }}{{ 'a'.removesuffix('') }}{{ 'a b'.split(' ', 0) }}{{ 'a  b c'.split(none, 1) }}",
    "{{ 'a'.partition('') }}", "{{ 'a'.rsplit('') }}", "{{ 'a'.split('') }}",
    "{{ \"they're bill's\".title() }}{{ 'aB1c'.title() }}|{{ 'a'.ljust(3) }}|{{ 'a'.rjust(3) }}|{{ 'a'.center(4) }}|"
    "{{ 'ab'.center(5, '*') }}|{{ 'a'.ljust(3, 'é') }}|{{ '7'.zfill(3) }}{{ '-7'.zfill(4) }}{{ '+'.zfill(3) }}"
    "{{ 'abc'.zfill(2) }}{{ 'aBc'.swapcase() }}{{ '12'.isdigit() }}{{ '1²'.isdigit() }}{{ '1²'.isdecimal() }}"
    "{{ '½'.isnumeric() }}{{ 'aé'.isalpha() }}{{ 'a1'.isalpha() }}{{ 'a1'.isalnum() }}{{ ' \n'.isspace() }}{{ ''.isspace() }}"
    "{{ ''.isdigit() }}{{ 'AB1'.isupper() }}{{ 'ab1'.islower() }}{{ 'Ab'.isupper() }}{{ '1'.isupper() }}"
    "{{ 'ab'.startswith('b', 1) }}{{ 'abc'.endswith('b', 0, 2) }}{{ 'ab'.startswith(('x', 'a')) }}{{ 'ab'.startswith('') }}"
    "{{ 'ab'.startswith('', 3) }}{{ 'ab'.endswith(()) }}",
    "{{ 'a'.ljust(3, 'ab') }}",
    # Tests.
    "{{ 6 is divisibleby 3 }}{{ 6 is divisibleby(4) }}{{ 6 is not divisibleby 4 }}{{ -6 is divisibleby -3 }}"
    "{{ true is sameas true }}{{ 1 is sameas true }}{{ none is sameas none }}{{ 'a' is lower }}{{ 'A' is upper }}"
    "{{ 'Aa' is lower }}{{ '1' is upper }}{{ 'upper' is filter }}{{ 'nope' is filter }}{{ 'odd' is test }}{{ 'nope' is test }}"
    "{{ 1 is lt 2 }}{{ 2 is gt(1) }}{{ 2 is ge 2 }}{{ 2 is le 1 }}{{ 2 is greaterthan 1 }}{{ 2 is lessthan 1 }}"
    "{{ 'a' is in 'abc' }}{{ 'ab' is in 'abc' }}{{ 'a' is in ['a'] }}{{ 'a' is not in ['a'] }}{{ 'k' is in {'k': 1} }}"
    "{{ 1 is eq 1 }}{{ 1 is ne 1 }}{{ 3.0 is odd }}{{ 2.0 is even }}{{ -3 is odd }}{{ 5 is string }}{{ 1.0 is float }}"
    "{{ true is integer }}{{ 1 is in (1, 2) }}{{ (1,) is sequence }}{{ (1,) is iterable }}{{ (1,) is mapping }}"
    "{{ [] is sameas [] }}{% set l = [1] %}{{ l is sameas l }}{{ 5 is odd and 4 is even }}{{ 1.0 is sameas 1 }}",
    "{{ 1 is divisibleby 0 }}", "{{ 'a' is divisibleby 2 }}", "{{ 1 is lt 'a' }}", "{{ 1 is nope }}",
    # With blocks.
    "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}{% set a = 5 %}{% with a = 1, b = a %}{{ a }}{{ b }}"
    "{% set a = 7 %}{% set c = 8 %}{{ a }}{% endwith %}{{ a }}{{ c is defined }}{% with %}{% set d = 1 %}{{ d }}{% endwith %}"
    "{{ d is defined }}{% with a, b = (1, 2) %}{{ a }}{{ b }}{% endwith %}{% with (a, b) = 'xy', c = 3 %}{{ a }}{{ b }}{{ c }}"
    "{% endwith %}{% for i in [1, 2, 3] %}{% with j = i * 2 %}{% if i == 2 %}{% continue %}{% endif %}{{ j }}{{ loop.index }}"
    "{% endwith %}{% endfor %}{{ i is defined }}",
    "{% with a %}{% endwith %}", "{% with a = 1 %}", "{% endwith %}", "{% with a = 1 b = 2 %}{% endwith %}",
    "{% with a, b = 1 %}{% endwith %}", "{% with 1 = a %}{% endwith %}",
    # Raw blocks.
    "{% raw %}{{ x }}{% if %}{# c #}{% endraw %}|{%- raw -%}  {{ y }}  {%- endraw -%}  z\n{% raw %}\n a\n {% endraw %}\nb\n  "
    "{% raw %}  {% x %}  {% endraw %}  c",
    "a\n  {% raw %}\n  b {{ c }}\n  {% endraw %}\nd{% raw %}{% endraw %}{% raw %}{%{% endraw %}{% raw %}{% raw %}{% endraw %}"
    "{%raw%}{{{%endraw%}\n{% raw %}x\n  {%+ endraw %}\n{% raw %} y{% endraw +%}\n",
    "{%+ raw %} x {% endraw %}\n  {%+ raw %}\n{%- endraw %} z", "{% raw %}", "{% raw %}{% endrawx %}", "{% endraw %}",
    "{% raw x %}{% endraw %}",
    # Filter blocks and set blocks with filters.
    "{% filter upper %}a{{ 'b' }}{% endfilter %}{% filter replace('a', 'x') | upper %}banana{% endfilter %}"
    "{% filter trim | indent(2, true) %}  \nx\ny\n{% endfilter %}{% filter upper %}{% set q = 1 %}{% endfilter %}"
    "{{ q is defined }}{% for i in [1, 2, 3] %}{% filter upper %}a{% if i == 2 %}{% continue %}{% endif %}b{% endfilter %}"
    "{% endfor %}{% filter upper %}{% filter title %}x y{% endfilter %}{{ 'z' }}{% endfilter %}{% set x | upper %}ab{% endset %}"
    "{{ x }}{% set y | trim | replace('b', 'c') %}  ab  {% endset %}[{{ y }}]{% filter default('d', true) %}{% endfilter %}",
    "{% filter length %}abc{% endfilter %}", "{% set x | length %}abc{% endset %}{{ x + 1 }}", "{% filter nope %}{% endfilter %}",
    "{% filter %}{% endfilter %}", "{% filter upper %}", "{% endfilter %}", "{% filter upper, lower %}{% endfilter %}",
    # Call blocks, varargs, kwargs, arguments that are unpacked.
    "{% macro box(t) %}<{{ t }}>{{ caller() }}</{{ t }}>{% endmacro %}{% call box('a') %}x{% endcall %}{% macro each(l) %}"
    "{% for i in l %}{{ caller(i, loop.index) }}{% endfor %}{% endmacro %}{% call(v, n) each(['p', 'q']) %}{{ n }}{{ v }},"
    "{% endcall %}{% set s = 1 %}{% for k in [1, 2] %}{% call box(k) %}{{ k }}{{ s }}{% set s = 9 %}{% call(v, n) each([k]) %}"
    "{{ v }}{{ k }}{{ s }}{% endcall %}{% endcall %}{% endfor %}{{ s }}",
    "{% macro opt() %}{% if caller %}yes{{ caller() }}{% else %}no{% endif %}{{ caller is defined }}{% endmacro %}{{ opt() }}"
    "{% call opt() %}!{% endcall %}{% macro twice() %}{{ caller() ~ caller() }}{% endmacro %}{% call twice() %}ab{% endcall %}"
    "{% call(a=1, b=2) twice() %}{{ a + b }}{% endcall %}{% macro outer() %}[{% call twice() %}in{% endcall %}{{ caller() }}]"
    "{% endmacro %}{% call outer() %}out{% endcall %}{% macro deep(n) %}{% if n > 0 %}{% call deep(n - 1) %}{{ n }}{% endcall %}"
    "{% endif %}{% if caller %}({{ caller() }}){% endif %}{% endmacro %}{{ deep(3) }}",
    "{% macro f() %}x{% endmacro %}{% call f() %}y{% endcall %}", "{% macro f() %}{{ caller() }}{% endmacro %}{{ f() }}",
    "{% call range(3) %}{% endcall %}", "{% call 5 %}{% endcall %}", "{% macro f(caller) %}{{ caller }}{% endmacro %}{{ f(1) }}",
    "{% macro f(caller=3) %}{{ caller }}{% endmacro %}{{ f() }}{{ f(caller=4) }}",
    "{% macro f() %}{{ caller(1) }}{% endmacro %}{% call f() %}{% endcall %}",
    "{% macro f() %}{{ caller() }}{% endmacro %}{% call f() %}", "{% endcall %}", "{{ caller() }}",
    "{% macro f() %}{{ caller() }}{% endmacro %}{% call f() | upper %}{% endcall %}",
    "{% for i in [1] %}{% macro f() %}{{ caller() }}{% endmacro %}{% call f() %}{% break %}{% endcall %}{% endfor %}",
    "{% macro f(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1) }}{{ f(1, 2, 3) }}{{ f(1, x=2) }}"
    "{{ f(*[1, 2, 3], **{'k': 4}) }}{{ f(1, *(5,)) }}{{ f(**{'a': 6}) }}{% macro g(a, b=2) %}{{ a }}{{ b }}{% endmacro %}"
    "{{ g(*[7, 8]) }}{{ g(1, **{'b': 3}) }}{{ 'a-b'.split(*['-']) }}{{ '%s' | format(*[1]) }}{{ range(*[1, 4]) | list }}"
    "{% set ns = namespace(**{'q': 1}) %}{{ ns.q }}{{ f(*'ab', k=1) }}{{ dict(a=1, **{'b': 2}) }}{{ dict([('a', 1), ['b', 2]]) }}"
    "{{ dict({'x': 1}, y=2) }}{{ dict() }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(*[1, 2]) }}", "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, **{'a': 2}) }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(**[1]) }}", "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(*5) }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(a=1, **{'a': 2}) }}", "{{ dict([1]) }}", "{{ dict(1, 2) }}",
    "{% macro f(a) %}{% endmacro %}{{ f(**{}, *[]) }}", "{% macro f(a) %}{% endmacro %}{{ f(*[1], 2) }}",
    "{% macro f(x) %}<{{ x }}>{% endmacro %}{% macro g(h, x) %}{{ h(x) }}{% endmacro %}{{ g(f, 1) }}{% set k = f %}{{ k(2) }}"
    "{{ f is callable }}",
    # Targets within targets.
    "{% for a, (b, c) in [(1, (2, 3)), [4, [5, 6]]] %}{{ a }}{{ b }}{{ c }};{% endfor %}{% for (a, b), c in [('xy', 1)] %}{{ a }}"
    "{{ b }}{{ c }}{% endfor %}{% for k, (x, y) in {'p': [1, 2]}.items() %}{{ k }}{{ x }}{{ y }}{% endfor %}"
    "{% for (a, b) in [(1, 2)] %}{{ a }}{{ b }}{% endfor %}{% set a, (b, c) = 1, (2, 3) %}{{ a }}{{ b }}{{ c }}"
    "{% set (a, b) = [4, 5] %}{{ a }}{{ b }}{% set (a,) = [6] %}{{ a }}{% for a, (b, (c, d)) in [[1, [2, [3, 4]]]] if d > 3 %}"
    "{{ a + b + c + d }}{{ loop.index }}{% endfor %}{% set (a) = 9 %}{{ a }}{% set ns = namespace() %}{% set ns.a, ns.b = 1, 2 %}"
    "{{ ns.a }}{{ ns.b }}{% set ns.c, q = 'uv' %}{{ ns.c }}{{ q }}",
    "{% for a, (b, c) in [(1, 2)] %}{% endfor %}", "{% for a, (b, c) in [(1, (2, 3, 4))] %}{% endfor %}",
    "{% for a.b in [1] %}{% endfor %}", "{% set a, (b = 1 %}", "{% set a, b = 1, 2, 3 %}",
    "{% for a, in [[1], [2]] %}{{ a }}{% endfor %}", "{% set a, = [6] %}", "{% for in [1] %}{% endfor %}", "{% set 1 = 2 %}",
    "{% set a() = 2 %}",
    "{% for i in [1, 2, 3] %}{{ loop.cycle('a', 'b') }}{{ loop.depth }}{{ loop.depth0 }}{% for j in [1] %}{{ loop.depth }}"
    "{% endfor %}{% endfor %}",
]
